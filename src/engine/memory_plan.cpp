#include "engine/memory_plan.h"

#include <algorithm>

#include "model/memory.h"
#include "ops/attention/parts.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

constexpr int64_t kTokensOfPlace = 512;    // of a GPU's KV pool for each sequence, at least
constexpr int64_t kShortestContext = 256;  // by default
constexpr int64_t kShareOfParts = 32;      // partial results of attention: so small a share of what is left
constexpr int64_t kMib = int64_t{1} << 20;

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// Sizes that a file gives: a number too large to count is larger than any memory.
int64_t capped(int64_t bytes) {
  return std::min(bytes, INT64_MAX / 4);
}
int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX / 4 : capped(product);
}

// Of what the host has: the rest is for whatever is no cache (requests and their texts, grammars, the program).
int64_t share_of_caches(int64_t memory) {
  return memory - std::max(memory / 8, std::min(64 * kMib, memory / 3));
}

// For steps and caches; negative where a GPU has not even the weights' room.
int64_t has_memory(const EnginePlan& o, const EngineMemory& memory) {
  const GpuMemory& m = memory.gpu;
  if (o.device == Device::kCuda)
    return static_cast<int64_t>(static_cast<double>(m.total) * o.gpu_memory_utilization) - m.used;
  return std::max<int64_t>(0, share_of_caches(memory.host) - o.swap_bytes - o.prefix_host_bytes);
}

// The scheduler needs room for two sequences of the whole context.
int64_t least_parts(const EnginePlan& o) {
  return attention_parts(o.context) * std::min(o.max_sequences, 2);
}

class Plan {
 public:
  Plan(EnginePlan plan, const ModelConfig& model, const EngineMemory& memory, const StepCost& cost)
      : o(std::move(plan)),
        model_(model),
        memory_(memory),
        cost_(cost),
        defaults_(PlanDefaults::of(o.device)),
        context_given_(o.context > 0),
        pool_given_(o.kv_tokens > 0),
        states_given_(o.state_checkpoints >= 0),
        sequences_given_(o.max_sequences > 0),
        parts_given_(o.decode_parts > 0),
        has_(has_memory(o, memory)) {}

  Status for_gpu() {
    if (o.max_batch_tokens == 0) o.max_batch_tokens = batch_tokens();
    if (!context_given_) o.context = half_of_rest();
    if (!sequences_given_) o.max_sequences = most_sequences();
    for (;;) {
      set_parts();
      QUIRE_TRY(const int64_t steps, step_bytes());
      if (has_ - steps >= least_caches()) break;
      QUIRE_CHECKED(shrink());
    }
    if (!pool_given_) {
      o.kv_tokens = pool_tokens(o.prefix_cache ? 4 : 1);
      o.kv_is_bound = true;
    }
    if (!states_given_) o.state_checkpoints = std::min(4 * o.max_sequences, 65536);
    return {};
  }

  Status for_cpu() {
    // What sequences are swapped out to, and the second tier of the prefix cache, is the same memory.
    o.swap_bytes = std::min(o.swap_bytes, share_of_caches(memory_.host) / 8);
    o.prefix_host_bytes = o.prefix_cache ? std::min(o.prefix_host_bytes, share_of_caches(memory_.host) / 4) : 0;
    has_ = has_memory(o, memory_);
    if (o.max_batch_tokens == 0) o.max_batch_tokens = batch_tokens();
    if (o.max_sequences == 0) o.max_sequences = std::min(defaults_.sequences, o.max_batch_tokens);
    // States and scratch memory of sequences take no more than half of what there is.
    while (o.max_sequences > 1 && places() > room() / 2) o.max_sequences -= o.max_sequences > 4 ? 4 : 1;
    if (!context_given_) o.context = longest_on_cpu();
    if (!pool_given_) o.kv_tokens = pool_on_cpu();
    if (!states_given_) {
      o.state_checkpoints = std::min(4 * o.max_sequences, 65536);
      const int64_t left = std::max<int64_t>(0, room() - places() - kv_bytes(o.kv_tokens));
      if (model_.has_state() && cost_.state() > 0)
        o.state_checkpoints = static_cast<int32_t>(std::min<int64_t>(o.state_checkpoints, left / cost_.state()));
    }
    o.state_checkpoints = window_places();
    return {};
  }

  EnginePlan o;

 private:
  int64_t room() const {
    return std::max<int64_t>(0, has_ - cost_.fixed - o.max_batch_tokens * cost_.row - o.sampled_rows() * cost_.sampled);
  }
  // Of one that is not counted in room() yet.
  int64_t of_place(int64_t context) const {
    return cost_.state() + cost_.sequence + cost_.sampled + times(context, cost_.position);
  }
  int64_t places() const { return times(o.max_sequences, cost_.state() + cost_.sequence); }
  int64_t kv_bytes(int64_t tokens) const { return times(blocks_of(tokens), cost_.kv_block()); }
  Result<int64_t> step_bytes() const {
    if (memory_.step_bytes) return memory_.step_bytes(o);
    return cost_.steps(o);
  }
  int64_t trained() const { return std::max<int64_t>(model_.context_length, 1); }

  // Beside which no engine can be: the states of those who run, and the keys and values of one.
  int64_t least_caches() const {
    return times(o.max_sequences, cost_.state()) + window_bytes(1, 1, 0) + fillers() +
           kv_bytes(pool_given_ ? o.kv_tokens : o.context);
  }
  // Of pools of windows: what so many sequences hold, and the rows of steps in flight (`steps` is 1), and so many
  // places of the prefix cache.
  int64_t window_bytes(int64_t sequences, int64_t steps, int64_t places) const {
    int64_t sum = 0;
    for (const CachePoolSpec& pool : cost_.pools) {
      const WindowNeeds n = o.window_needs(pool);
      sum = capped(sum + times(n.sequence * sequences + n.steps * steps + n.place * places, pool.bytes));
    }
    return sum;
  }
  // The block that each of them has beside those that are counted.
  int64_t fillers() const {
    int64_t sum = 0;
    for (const CachePoolSpec& pool : cost_.pools)
      if (o.window_needs(pool).least() > 0) sum = capped(sum + capped(pool.bytes));
    return sum;
  }

  int32_t batch_tokens() const {
    const int64_t left = has_ - cost_.fixed;
    int32_t tokens = defaults_.batch_tokens;
    while (tokens > defaults_.few_batch_tokens && times(tokens, cost_.row) > left / 8) tokens /= 2;
    return std::max({tokens, kChunkTokens, o.max_sequences});
  }

  int64_t half_of_rest() const {
    const int64_t places = std::max(o.max_sequences, 1), left = room() / 2 - places * (cost_.state() + cost_.sequence);
    const int64_t of_block = cost_.kv_block() + places * cost_.position * kBlockTokens;
    const int64_t fitting = of_block == 0 ? trained() : left / of_block * kBlockTokens;
    const int64_t most = pool_given_ ? std::min(trained(), o.kv_tokens) : trained();
    return std::clamp(fitting, std::min(kLeastContext, most), most);
  }

  // Numbers that graphs are captured for anyway, downwards.
  static int32_t fewer(int32_t n) { return n - (n > 128 ? 16 : n > 64 ? 8 : n > 8 ? 4 : 1); }

  int32_t most_sequences() const {
    const int64_t rest = room() - room() / kShareOfParts;
    const auto places = [&](int64_t n, int64_t drafts) { return n * (of_place(o.context) - cost_.drafts + drafts); };
    const auto fits = [&](int64_t n, int64_t drafts) {
      const int64_t taken = places(n, drafts);
      return taken <= rest / 2 && taken + std::max(kv_bytes(o.context), kv_bytes(n * kTokensOfPlace)) <= rest;
    };
    int32_t without = std::min(defaults_.sequences, o.max_batch_tokens);
    while (without > 1 && !fits(without, 0)) without = fewer(without);
    // What drafts take of states costs some sequences rather than more than a twentieth of the pool.
    const int64_t most = places(without, 0) + (rest - places(without, 0)) / 20;
    int32_t n = without;
    while (n > 1 && (!fits(n, cost_.drafts) || places(n, cost_.drafts) > most)) n = fewer(n);
    return n;
  }

  // What that share of the rest holds: with the keys of a full pool that is room for some drafts of everybody, and
  // sequences that share a prefix, each of which reads all of its keys, can have several times as many keys as the
  // pool.
  void set_parts() {
    if (cost_.part == 0 || parts_given_) return;
    const int64_t one = attention_parts(o.context), least = least_parts(o);
    const int64_t all = times(times(one, o.max_sequences), 1 + o.most_drafts());
    o.decode_parts = std::clamp(room() / kShareOfParts / cost_.part, least, all);
  }

  // The next smaller plan. What is gained most easily goes first; context and pool that were asked for stay.
  Status shrink() {
    const int64_t least = std::min(kShortestContext, trained());
    const auto shorter = [&](int64_t floor) {
      if (context_given_ || o.context <= floor) return false;
      o.context = std::max(floor, o.context * 3 / 4 / kBlockTokens * kBlockTokens);
      return true;
    };
    if (!sequences_given_ && o.max_sequences > 16) return o.max_sequences = fewer(o.max_sequences), Status();
    if (smaller_steps(defaults_.few_batch_tokens) || shorter(kLeastContext)) return {};
    if (o.max_sequences > 1) return o.max_sequences = fewer(o.max_sequences), Status();
    if (smaller_steps(kChunkTokens) || shorter(least)) return {};
    return cannot_fit();
  }
  bool smaller_steps(int32_t floor) {
    const int32_t least = std::max({floor, o.max_sequences, kChunkTokens});
    if (o.max_batch_tokens <= least) return false;
    o.max_batch_tokens = std::max(least, o.max_batch_tokens / 2);
    return true;
  }

  int64_t pool_tokens(int64_t each) const {
    const int64_t all = times(times(o.max_sequences, o.context), each);
    return std::max(o.context, std::min(all, defaults_.pool_tokens));
  }

  Status cannot_fit() const {
    const GpuMemory& m = memory_.gpu;
    QUIRE_TRY(const int64_t steps, step_bytes());
    const int64_t left = has_ - steps, tokens = pool_given_ ? o.kv_tokens : o.context;
    const int64_t others = least_caches() - kv_bytes(tokens);
    std::string most;
    if (has_ <= 0)
      most = " where nothing is left";
    else if (left > others && cost_.kv_block() > 0)
      most = fmt::format(" (at most {} tokens fit)", (left - others) / cost_.kv_block() * kBlockTokens);
    return capacity_error(
        "{} does not fit the GPU: of {:.1f} GiB, {:.0f}% may be used, {:.1f} GiB are in use (weights {:.1f}), and "
        "one sequence beside a KV cache of {} tokens needs {:.1f} GiB{}; use a {}, a smaller model, or a higher "
        "--gpu-memory-utilization",
        model_.name.empty() ? "the model" : model_.name, gib(m.total), o.gpu_memory_utilization * 100, gib(m.used),
        gib(m.weights), tokens, gib(least_caches() + steps), most,
        pool_given_ ? "smaller --kv-tokens" : "shorter --context");
  }

  int64_t few_windows() const { return window_bytes(std::min(o.max_sequences, kDefaultSequences), 1, 0); }

  // The longest sequence whose keys and values, and what the engine keeps for every block of such a pool and for every
  // sequence's table, fit beside the places, and beside the windows of few sequences, which have half of that.
  int64_t longest_on_cpu() const {
    constexpr int64_t kOfBlock = 64, kPast = 4 * kBlockTokens;
    const int64_t tables = int64_t{4} * block_pools(cost_.pools) * o.max_sequences;
    const int64_t of_block = std::min(cost_.kv_block(), INT64_MAX / 2) + kOfBlock + tables + kPast;
    const int64_t left = std::max<int64_t>(0, room() - places());
    const int64_t fitting = (left - std::min(few_windows(), left / 2)) / of_block * kBlockTokens;
    return std::min(std::max(fitting, kLeastContext), trained());
  }

  // One context always; more as far as there is room, of which saved states have some.
  int64_t pool_on_cpu() const {
    const int64_t left = std::max<int64_t>(0, room() - places() - few_windows());
    const int64_t share = model_.has_state() && o.prefix_cache ? left / 4 * 3 : left;
    const int64_t fitting = cost_.kv_block() == 0 ? defaults_.pool_tokens : share / cost_.kv_block() * kBlockTokens;
    return std::max(o.context, std::min(pool_tokens(1), fitting));
  }

  // Of the places of the prefix cache that are wanted, those whose windows fit beside the other caches.
  int32_t window_places() const {
    const int64_t place = window_bytes(0, 0, 1);
    if (place == 0) return o.state_checkpoints;
    const int64_t left = has_ - kv_bytes(o.kv_tokens) - few_windows();
    return static_cast<int32_t>(std::clamp<int64_t>(left / place, 0, o.state_checkpoints));
  }

  const ModelConfig& model_;
  const EngineMemory& memory_;
  const StepCost& cost_;
  PlanDefaults defaults_;
  bool context_given_, pool_given_, states_given_, sequences_given_, parts_given_;
  int64_t has_;  // for steps and caches
};

}  // namespace

int64_t StepCost::steps(const EnginePlan& o) const {
  return fixed + o.max_batch_tokens * row + o.sampled_rows() * sampled +
         times(o.max_sequences, sequence + times(o.context, position)) + times(o.decode_parts, part);
}

Result<StepCost> step_cost(const EnginePlan& o, const ModelConfig& c) {
  CacheShape shape = o.cache_shape(c);
  const std::optional<CachePools> pools = shape.pools();
  if (!pools) return file_error("keys and values, or recurrent states, of more bytes than can be counted");
  const bool gpu = o.device == Device::kCuda;
  StepCost cost{.fixed = (gpu ? 384 : 16) * kMib, .pools = *pools};
  shape.drafts = 0;
  cost.drafts = cost.state() - state_bytes(shape.pools().value_or(CachePools{}));
  // A third more than what is counted, for scratch memory of single operators.
  const ExpertsSpec& f = c.experts;
  const int64_t results = f.count > 0 ? (int64_t{f.top_k} + 1) * c.d_model * 2 + int64_t{f.count} * 4 : 0;
  cost.row = (activation_row_bytes(c) + results) * 4 / 3;
  cost.sampled = 3 * 4 * c.vocab + 2 * 8 * int64_t{o.max_logit_bias};
  if (!gpu) return cost;
  // A CPU's histories are touched where penalties ask for them, a GPU's are allocated.
  cost.sequence = token_history_bytes(1, c.vocab, std::min(c.vocab, c.context_length));
  // All rows of steps in flight, and the window that each sequence may come to hold.
  for (const CachePoolSpec& pool : cost.pools) {
    if (!pool.is_window()) continue;
    cost.row += o.depth * pool.bytes / kBlockTokens;
    cost.sequence += o.window_needs(pool).sequence * pool.bytes;
  }
  cost.position = 1;
  // Rows of queries of a KV head's group come in eights.
  const AttentionSpec& a = c.attention;
  for (const Mixer m : {Mixer::kAttention, Mixer::kWindowAttention}) {
    const HeadShape heads = a.heads_of(m);
    const int64_t group = heads.kv_heads == 0 ? 0 : (a.heads / heads.kv_heads + 7) / 8 * 8;
    if (c.attention_layers() > 0)
      cost.part = std::max(cost.part, heads.kv_heads * group * (int64_t{heads.head_dim} + 2) * 4);
  }
  return cost;
}

Result<EnginePlan> plan_memory(EnginePlan o, const ModelConfig& c, const EngineMemory& memory) {
  QUIRE_TRY(const StepCost cost, step_cost(o, c));
  const Device device = o.device;
  Plan plan(std::move(o), c, memory, cost);
  QUIRE_CHECKED(device == Device::kCuda ? plan.for_gpu() : plan.for_cpu());
  if (plan.o.decode_parts > 0) plan.o.decode_parts = std::max(plan.o.decode_parts, least_parts(plan.o));
  return std::move(plan.o);
}

Result<MemoryShares> memory_shares(const EnginePlan& o, const ModelConfig& c, const EngineMemory& memory) {
  QUIRE_TRY(const StepCost cost, step_cost(o, c));
  MemoryShares s{.steps = cost.steps(o), .states = times(o.max_sequences, cost.state()), .kv_tokens = o.kv_tokens};
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

UnitsWithin units_within(const EnginePlan& plan, const CachePools& pools, int64_t bytes) {
  UnitsWithin u{.counts = plan.wanted_units(pools)};
  const int64_t block = pools[kKvPool].bytes;
  if (const int pool = state_pool(pools); pool >= 0) {
    const int64_t state = state_bytes(pools);
    int32_t& states = u.counts[static_cast<size_t>(pool)];
    const int32_t own = std::min(states, plan.max_sequences);
    states = own + saved_states(states - own, bytes - state * own, state, block * blocks_of(plan.context));
    bytes -= state * states;
  }
  u.least_tokens = (plan.kv_is_bound ? blocks_of(plan.context) : plan.kv_blocks()) * kBlockTokens;
  const int64_t others = block * blocks_of(u.least_tokens);
  u.least_bytes = others;
  const auto running = [&](const CachePoolSpec& pool) {
    const WindowNeeds n = plan.window_needs(pool);
    return times(int64_t{n.sequence} * plan.max_sequences + n.steps, pool.bytes);
  };
  int64_t of_all = 0, left = bytes;
  for (const CachePoolSpec& pool : pools) of_all = capped(of_all + running(pool));
  u.fits = true;
  for (size_t i = kKvPool + 1; i < static_cast<size_t>(block_pools(pools)); ++i) {
    const WindowNeeds needs = plan.window_needs(pools[i]);
    const double part = of_all == 0 ? 1.0 : static_cast<double>(running(pools[i])) / static_cast<double>(of_all);
    const auto share = [part](int64_t n) {
      return part == 1.0 ? n : static_cast<int64_t>(static_cast<double>(n) * part);
    };
    u.counts[i] = window_pool(needs, plan.max_sequences, plan.prefix_cache ? plan.state_checkpoints : 0, share(bytes),
                              pools[i].bytes, share(others));
    u.fits = u.fits && u.counts[i] >= needs.least();
    u.least_bytes += pools[i].bytes * needs.least();
    if (u.counts[i] > 0) left -= (int64_t{u.counts[i]} + 1) * pools[i].bytes;
  }
  u.fits = u.fits && left >= others;
  u.counts[kKvPool] = static_cast<int32_t>(std::min<int64_t>(plan.kv_blocks(), block == 0 ? INT32_MAX : left / block));
  return u;
}

int32_t window_pool(const WindowNeeds& needs, int64_t sequences, int64_t places, int64_t left, int64_t block_bytes,
                    int64_t others) {
  if (needs.least() == 0 || block_bytes <= 0) return 0;
  const int64_t most = std::max<int64_t>(left - others, 0) / block_bytes - 1, least = needs.least();
  if (most < least) return 0;
  const int64_t wanted = needs.sequence * sequences + needs.steps,
                running = std::min({wanted, std::max(left / 2 / block_bytes, least), most}),
                kept = std::min({needs.place * places, left / 4 / block_bytes, most - running});
  return static_cast<int32_t>(std::min<int64_t>(running + kept, INT32_MAX - 1));
}

int32_t saved_states(int64_t wanted, int64_t left, int64_t state_bytes, int64_t context_bytes) {
  if (state_bytes <= 0 || wanted <= 0) return 0;
  const int64_t fitting = std::min(left / 4, left - context_bytes) / state_bytes;
  return static_cast<int32_t>(std::clamp<int64_t>(fitting, 0, wanted));
}

}  // namespace quire
