#include "engine/memory_plan.h"

#include <algorithm>

#include "engine/byte_counts.h"
#include "engine/pool_units.h"
#include "ops/attention/parts.h"

namespace quire {
namespace {

constexpr int64_t kShortestContext = 256;  // by default
constexpr int64_t kShareOfParts = 32;      // partial results of attention: so small a share of what is left
constexpr int32_t kManySequences = 16;     // more than that go before anything else becomes smaller
constexpr int64_t kMib = int64_t{1} << 20;

double in_gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// Of what the host has: the rest is for whatever is no cache (requests and their texts, grammars, the program).
int64_t share_of_caches(int64_t memory) {
  return memory - std::max(memory / 8, std::min(64 * kMib, memory / 3));
}

// For steps and caches; negative where a GPU has not even the weights' room.
int64_t has_memory(const EnginePlan& o, const EngineMemory& memory) {
  const GpuMemory& m = memory.gpu;
  if (o.device == Device::kCuda) return m.bound(o.gpu_memory_utilization) - m.used;
  return std::max<int64_t>(0, share_of_caches(memory.host) - o.swap_bytes - o.prefix_host_bytes);
}

// What a CPU's sequences are swapped out to, and the second tier of its prefix cache, is the memory of its caches.
// Where the GPU shares the host's memory there is no second one: its pools are larger instead.
void bound_host_tiers(EnginePlan& o, const EngineMemory& memory) {
  if (o.device == Device::kCuda && memory.gpu.shared_with_host()) o.swap_bytes = o.prefix_host_bytes = 0;
  if (o.device != Device::kCpu) return;
  o.swap_bytes = std::min(o.swap_bytes, share_of_caches(memory.host) / 8);
  o.prefix_host_bytes = o.prefix_cache ? std::min(o.prefix_host_bytes, share_of_caches(memory.host) / 4) : 0;
}

// The scheduler needs room for two sequences of the whole context.
int64_t least_parts(const EnginePlan& o) {
  return attention_parts(o.context) * std::min(o.max_sequences, 2);
}

// Numbers that graphs are captured for anyway, downwards.
int32_t fewer(int32_t n) {
  return n - (n > 128 ? 16 : n > 64 ? 8 : n > 8 ? 4 : 1);
}

class MemoryPlanner {
 public:
  // `plan`, whose options leave something open; what is asked for stays known.
  MemoryPlanner(EnginePlan plan, const ModelConfig& model, const EngineMemory& memory, const StepCost& cost)
      : o_(std::move(plan)),
        asked_(o_),
        model_(model),
        memory_(memory),
        cost_(cost),
        defaults_(PlanDefaults::of(o_.device)),
        has_(has_memory(o_, memory)) {}

  Result<EnginePlan> plan() {
    choose_rows();
    choose_context();
    choose_sequences();
    choose_parts();
    if (defaults_.measured) QUIRE_CHECKED(shrink_until_it_fits());
    choose_pool();
    choose_saved_states();
    return std::move(o_);
  }

 private:
  // The decisions.

  void choose_rows() {
    if (asked_.max_batch_tokens > 0) return;
    const int64_t left = has_ - cost_.fixed;
    int32_t tokens = defaults_.batch_tokens;
    while (tokens > defaults_.few_batch_tokens && times(tokens, cost_.row) > left / 8) tokens /= 2;
    o_.max_batch_tokens = std::max({tokens, o_.least_rows(), asked_.max_sequences});
  }

  void choose_context() {
    o_.max_sequences = sequences_beside_context();
    if (asked_.context > 0) return;
    const int64_t places = std::max(o_.max_sequences, 1);
    int64_t left = room() / defaults_.part_of_context - std::min(of_places(places), room() / 2);
    left -= std::min(windows(o_.max_sequences), left / 2);
    const int64_t of_block = capped(cost_.kv_block()) + cost_.block + times(places, cost_.table);
    const int64_t fitting = of_block == 0 ? trained() : left / of_block * kBlockTokens;
    const int64_t most = asked_.kv_tokens > 0 ? std::min(trained(), asked_.kv_tokens) : trained();
    o_.context = std::clamp(fitting, std::min(kLeastContext, most), most);
  }

  void choose_sequences() {
    if (defaults_.measured && asked_.max_sequences > 0) return;
    const int32_t wanted =
        asked_.max_sequences > 0 ? asked_.max_sequences : std::min(defaults_.sequences, o_.max_batch_tokens);
    o_.max_sequences = most_sequences(wanted, std::max(o_.max_sequences, 1));
  }

  // What that share of the rest holds: with the keys of a full pool that is room for some drafts of everybody, and
  // sequences that share a prefix, each of which reads all of its keys, can have several times as many keys as the
  // pool.
  void choose_parts() {
    if (cost_.part == 0 || asked_.decode_parts > 0) return;
    const int64_t one = attention_parts(o_.context), least = least_parts(o_);
    const int64_t all = times(times(one, o_.max_sequences), 1 + o_.most_drafts());
    o_.decode_parts = std::clamp(room() / kShareOfParts / cost_.part, least, all);
  }

  Status shrink_until_it_fits() {
    for (;;) {
      QUIRE_TRY(const int64_t steps, step_bytes());
      if (has_ - steps >= least_caches()) return {};
      QUIRE_CHECKED(shrink());
      choose_parts();
    }
  }

  void choose_pool() {
    if (asked_.kv_tokens > 0) return;
    const int64_t contexts = o_.prefix_cache ? defaults_.prefix_contexts : 1,
                  all = times(times(o_.max_sequences, o_.context), contexts);
    int64_t tokens = std::min(all, defaults_.pool_tokens);
    o_.kv_is_bound = defaults_.measured;
    if (!o_.kv_is_bound) {
      const int64_t left = left_for_caches(), of_block = capped(cost_.kv_block()) + cost_.block;
      const int64_t share = o_.prefix_cache && cost_.state() > 0 ? left / 4 * 3 : left;
      if (cost_.kv_block() > 0) tokens = std::min(tokens, share / of_block * kBlockTokens);
    }
    o_.kv_tokens = std::max(o_.context, tokens);
  }

  // States that are asked for are taken as they are. Blocks of windows have what steps are estimated to take besides,
  // as long as all of it stays within the host's memory: the longest context that fits leaves nothing else, and no
  // prompt of such a model goes on without a place.
  void choose_saved_states() {
    const bool asked = asked_.state_checkpoints >= 0;
    if (!asked) o_.state_checkpoints = std::min(4 * o_.max_sequences, 65536);
    if (defaults_.measured) return;
    const auto bound = [&](int64_t bytes, int64_t each) {
      o_.state_checkpoints = static_cast<int32_t>(std::clamp<int64_t>(bytes / each, 0, o_.state_checkpoints));
    };
    const int64_t kv = kv_bytes(o_.kv_tokens), windows_of_place = window_bytes(0, 0, 1);
    if (!asked && cost_.state() > 0) bound(left_for_caches() - kv, cost_.state());
    const int64_t most = std::min(has_, memory_.host - cost_.steps(o_));
    if (windows_of_place > 0) bound(most - states() - windows(o_.max_sequences) - kv, windows_of_place);
  }

  // What they are made by.

  int64_t trained() const { return std::max<int64_t>(model_.context_length, 1); }
  int64_t room() const {
    return std::max<int64_t>(0,
                             has_ - cost_.fixed - o_.max_batch_tokens * cost_.row - o_.sampled_rows() * cost_.sampled);
  }
  int64_t of_places(int64_t sequences) const { return times(sequences, cost_.place() + cost_.sequence); }
  int64_t states() const { return times(o_.max_sequences, cost_.place()); }
  int64_t kv_bytes(int64_t tokens) const { return times(blocks_of(tokens), capped(cost_.kv_block()) + cost_.block); }

  // Of pools of windows: what so many sequences hold, and the rows of steps in flight (`steps` is 1), and so many
  // places of the prefix cache.
  int64_t window_bytes(int64_t sequences, int64_t steps, int64_t places) const {
    int64_t sum = 0;
    for (const CachePoolSpec& pool : cost_.pools) {
      const WindowNeeds n = o_.window_needs(pool);
      sum = capped(sum + times(n.sequence * sequences + n.steps * steps + n.place * places, pool.bytes));
    }
    return sum;
  }
  // Those of so many sequences that are counted apart.
  int64_t windows(int32_t sequences) const {
    return defaults_.windows == 0 ? 0 : window_bytes(std::min(sequences, defaults_.windows), 1, 0);
  }
  // The block that each pool of windows has beside those that are counted.
  int64_t fillers() const {
    int64_t sum = 0;
    for (const CachePoolSpec& pool : cost_.pools)
      if (o_.window_needs(pool).least() > 0) sum = capped(sum + capped(pool.bytes));
    return sum;
  }
  // By the estimate.
  int64_t left_for_caches() const {
    return std::max<int64_t>(0, has_ - cost_.steps(o_) - states() - windows(o_.max_sequences));
  }
  Result<int64_t> step_bytes() const {
    if (memory_.step_bytes) return memory_.step_bytes(o_);
    return cost_.steps(o_);
  }
  // Beside which no engine can be: the states of those who run, and the keys and values of one.
  int64_t least_caches() const {
    return states() + window_bytes(1, 1, 0) + fillers() + kv_bytes(asked_.kv_tokens > 0 ? o_.kv_tokens : o_.context);
  }

  // Those that are asked for, or that the context has to leave room for. Where they do not become fewer once the rest
  // is measured, they do here, until they take no more than half of what there is. 0: none in particular.
  int32_t sequences_beside_context() {
    int32_t n =
        asked_.max_sequences > 0 ? asked_.max_sequences : std::min(defaults_.beside_context, o_.max_batch_tokens);
    const auto fits = [&] {
      o_.max_sequences = n;
      return of_places(n) <= room() / 2;
    };
    while (!defaults_.measured && n > 1 && !fits()) n -= n > 4 ? 4 : 1;
    return n;
  }

  // At most `wanted`, and at least `least`.
  int32_t most_sequences(int32_t wanted, int32_t least) {
    o_.max_sequences = 0;  // the rows that are sampled count with their places
    const int64_t rest = room() - room() / kShareOfParts;
    const int64_t of_place =
        cost_.place() - cost_.drafts + cost_.sequence + cost_.sampled + times(o_.context, cost_.table) / kBlockTokens;
    const auto places = [&](int64_t n, int64_t drafts) { return n * (of_place + drafts); };
    const auto fits = [&](int64_t n, int64_t drafts) {
      const int64_t taken = places(n, drafts);
      const int64_t pool = std::max(kv_bytes(o_.context), kv_bytes(n * defaults_.tokens_of_place));
      return taken <= rest / 2 && taken + pool <= rest;
    };
    const auto lower = [&](int32_t n) { return std::max(least, fewer(n)); };
    int32_t without = std::max(wanted, least);
    while (without > least && !fits(without, 0)) without = lower(without);
    // What drafts take of states costs some sequences rather than more than a part of the pool.
    const int64_t most = places(without, 0) + (rest - places(without, 0)) / defaults_.part_of_drafts;
    int32_t n = without;
    while (n > least && (!fits(n, cost_.drafts) || places(n, cost_.drafts) > most)) n = lower(n);
    if (defaults_.measured) return n;
    // What is not measured has to fit by the estimate: all rows that are sampled, and windows.
    const auto is_estimated_to_fit = [&] {
      o_.max_sequences = n;
      return left_for_caches() >= kv_bytes(o_.context);
    };
    while (n > least && !is_estimated_to_fit()) n = lower(n);
    return n;
  }

  // The next smaller plan. What is gained most easily goes first; context and pool that were asked for stay.
  Status shrink() {
    const int64_t least = std::min(kShortestContext, trained());
    const auto shorter = [&](int64_t floor) {
      if (asked_.context > 0 || o_.context <= floor) return false;
      o_.context = std::max(floor, o_.context * 3 / 4 / kBlockTokens * kBlockTokens);
      return true;
    };
    const bool many = asked_.max_sequences == 0 && o_.max_sequences > kManySequences;
    if (many) return o_.max_sequences = fewer(o_.max_sequences), Status();
    if (smaller_steps(defaults_.few_batch_tokens) || shorter(kLeastContext)) return {};
    if (o_.max_sequences > 1) return o_.max_sequences = fewer(o_.max_sequences), Status();
    if (smaller_steps(kChunkTokens) || shorter(least)) return {};
    return cannot_fit();
  }
  bool smaller_steps(int32_t floor) {
    const int32_t least = std::max({floor, o_.max_sequences, o_.least_rows()});
    if (o_.max_batch_tokens <= least) return false;
    o_.max_batch_tokens = std::max(least, o_.max_batch_tokens / 2);
    return true;
  }

  Status cannot_fit() const {
    const GpuMemory& m = memory_.gpu;
    QUIRE_TRY(const int64_t steps, step_bytes());
    const bool pool_given = asked_.kv_tokens > 0;
    const int64_t left = has_ - steps, tokens = pool_given ? o_.kv_tokens : o_.context;
    const int64_t others = least_caches() - kv_bytes(tokens);
    std::string most;
    if (has_ <= 0)
      most = " where nothing is left";
    else if (left > others && cost_.kv_block() > 0)
      most = fmt::format(" (at most {} tokens fit)", (left - others) / cost_.kv_block() * kBlockTokens);
    const bool reserved = m.bound(o_.gpu_memory_utilization) == m.total - m.reserve && m.shared_with_host();
    return capacity_error(
        "{} does not fit the GPU: of {:.1f} GiB{}, {:.0f}% may be used, {:.1f} GiB are in use (weights {:.1f}), and "
        "one sequence beside a KV cache of {} tokens needs {:.1f} GiB{}; use a {}{}",
        model_.name.empty() ? "the model" : model_.name, in_gib(m.total),
        m.shared_with_host() ? " that it shares with the machine" : "",
        100.0 * static_cast<double>(m.bound(o_.gpu_memory_utilization)) / static_cast<double>(m.total), in_gib(m.used),
        in_gib(m.weights), tokens, in_gib(least_caches() + steps), most,
        pool_given ? "smaller --kv-tokens" : "shorter --context",
        reserved ? " or a smaller model" : ", a smaller model, or a higher --gpu-memory-utilization");
  }

  EnginePlan o_;
  const EngineOptions asked_;
  const ModelConfig& model_;
  const EngineMemory& memory_;
  const StepCost& cost_;
  const PlanDefaults defaults_;
  const int64_t has_;  // for steps and caches
};

}  // namespace

Status check_room_for_weights(const GpuMemory& m, int64_t weights) {
  if (!m.shared_with_host() || weights <= m.total - m.reserve - m.used) return {};
  return capacity_error(
      "weights of {:.1f} GiB do not fit the memory that this GPU shares with the machine: of {:.1f} GiB, {:.1f} are "
      "available and {:.1f} stay free for the system; end what else takes memory, or use a smaller model",
      in_gib(weights), in_gib(m.total), in_gib(m.total - m.used), in_gib(m.reserve));
}

Result<EnginePlan> plan_memory(EnginePlan o, const ModelConfig& c, const EngineMemory& memory) {
  QUIRE_TRY(const StepCost cost, step_cost(o, c));
  bound_host_tiers(o, memory);
  QUIRE_TRY(EnginePlan plan, MemoryPlanner(std::move(o), c, memory, cost).plan());
  if (plan.decode_parts > 0) plan.decode_parts = std::max(plan.decode_parts, least_parts(plan));
  return plan;
}

Result<MemoryShares> memory_shares(const EnginePlan& o, const ModelConfig& c, const EngineMemory& memory) {
  QUIRE_TRY(const StepCost cost, step_cost(o, c));
  MemoryShares s{.steps = cost.steps(o), .states = times(o.max_sequences, cost.place()), .kv_tokens = o.kv_tokens};
  int64_t saved = o.prefix_cache && c.has_state() ? o.state_checkpoints : 0;
  if (o.kv_is_bound) {
    int64_t left = has_memory(o, memory) - s.steps - s.states;
    saved = saved_states(saved, left, cost.state(), times(blocks_of(o.context), cost.kv_block()));
    left -= saved * cost.state();
    if (cost.kv_block() > 0)
      s.kv_tokens = std::min(o.kv_tokens, std::max<int64_t>(left, 0) / cost.kv_block() * kBlockTokens);
  }
  s.saved_states = saved * cost.state();
  s.kv = times(blocks_of(s.kv_tokens), cost.kv_block());
  return s;
}

}  // namespace quire
