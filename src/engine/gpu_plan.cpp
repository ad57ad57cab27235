#include "engine/gpu_plan.h"

#include <algorithm>

#include "model/memory.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

constexpr int64_t kPartKeys = 256;         // keys of one partial result of attention
constexpr int64_t kTokensOfPlace = 512;    // of the KV pool for each sequence, at least
constexpr int64_t kShortestContext = 256;  // by default
// Larger pools would cost the host more to keep the books of than they are worth.
constexpr int64_t kMostPoolTokens = int64_t{1} << 26;

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

int64_t blocks(int64_t tokens) {
  return (tokens + kBlockTokens - 1) / kBlockTokens;
}

// What the options and the card leave to choose from.
class Plan {
 public:
  Plan(const EngineOptions& options, const ModelConfig& model, const GpuMemory& memory, const GpuStepCost& cost)
      : o_(options),
        model_(model),
        memory_(memory),
        cost_(cost),
        cap_(static_cast<int64_t>(static_cast<double>(memory.total) * options.gpu_memory_utilization)) {}

  // Beside a step's rows: what sequences, their caches and saved states share.
  int64_t room() const {
    return std::max<int64_t>(0, cap_ - memory_.used - cost_.fixed - o_.max_batch_tokens * cost_.row);
  }
  int64_t of_place(int64_t context) const { return cost_.sequence + context * cost_.position; }
  int64_t kv_bytes(int64_t tokens) const { return blocks(tokens) * cost_.kv_block; }

  int32_t batch_tokens() const {
    const int64_t left = cap_ - memory_.used - cost_.fixed;
    int32_t tokens = kGpuBatchTokens;
    while (tokens > kFewGpuBatchTokens && tokens * cost_.row > left / 8) tokens /= 2;
    return std::max({tokens, kChunkTokens, o_.max_sequences});
  }

  int64_t longest_context() const {
    const int64_t places = std::max(o_.max_sequences, 1);
    const int64_t left = room() / 2 - places * cost_.sequence;
    const int64_t of_block = cost_.kv_block + places * cost_.position * kBlockTokens;
    const int64_t fitting = of_block == 0 ? model_.context_length : left / of_block * kBlockTokens;
    return std::min(std::max<int64_t>(fitting, 0), model_.context_length);
  }

  // Numbers that graphs are captured for anyway, downwards.
  int32_t most_sequences() const {
    const int64_t rest = room();
    const auto fits = [&](int64_t n) {
      const int64_t places = n * of_place(o_.context);
      return places <= rest / 2 && places + std::max(kv_bytes(o_.context), kv_bytes(n * kTokensOfPlace)) <= rest;
    };
    int32_t n = std::min(kGpuSequences, o_.max_batch_tokens);
    while (n > 1 && !fits(n)) n -= n > 128 ? 16 : n > 64 ? 8 : n > 8 ? 4 : 1;
    return n;
  }

  int64_t pool_tokens() const {
    const int64_t all = o_.max_sequences * o_.context, kept = o_.prefix_cache ? 4 * all : all;
    return std::max(o_.context, std::min(kept, kMostPoolTokens));
  }

  // By what is known exactly.
  Status check(bool pool_given) const {
    const WindowNeeds needs = o_.window_needs(model_);
    const int64_t windows = needs.least() > 0 ? (needs.least() + 1) * cost_.window_block : 0;
    const int64_t tokens = pool_given ? o_.kv_tokens : o_.context, kv = kv_bytes(tokens) + windows;
    const int64_t states = o_.max_sequences * cost_.state, left = cap_ - memory_.used;
    if (states + kv <= left) return {};
    const std::string of_state =
        cost_.state == 0 ? "" : fmt::format(" with recurrent states of {:.3f} GiB each", gib(cost_.state));
    return capacity_error(
        "{} does not fit the GPU: of {:.1f} GiB, {:.0f}% may be used, {:.1f} GiB are in use (weights "
        "{:.1f}), and {} "
        "sequences{} beside a KV cache of {} tokens need {:.1f} GiB{}; use a shorter --context, fewer "
        "sequences, or a "
        "higher --gpu-memory-utilization",
        model_.name.empty() ? "the model" : model_.name, gib(memory_.total), o_.gpu_memory_utilization * 100,
        gib(memory_.used), gib(memory_.weights), o_.max_sequences, of_state, tokens, gib(states + kv),
        fitting(left, states + windows, kv - windows));
  }

 private:
  std::string fitting(int64_t left, int64_t states, int64_t kv) const {
    if (left <= 0) return " where nothing is left";
    if (left >= kv && cost_.state > 0) return fmt::format(" (at most {} sequences fit)", (left - kv) / cost_.state);
    if (left > states) return fmt::format(" (at most {} tokens fit)", (left - states) / cost_.kv_block * kBlockTokens);
    return {};
  }

  const EngineOptions& o_;
  const ModelConfig& model_;
  const GpuMemory& memory_;
  const GpuStepCost& cost_;
  int64_t cap_;
};

}  // namespace

Result<GpuStepCost> gpu_step_cost(const EngineOptions& o, const ModelConfig& c) {
  const CacheShape shape = o.cache_shape(c);
  const std::optional<int64_t> block = shape.block_bytes(), window = shape.window_block_bytes(),
                               state = shape.state_bytes();
  if (!block || !window || !state)
    return file_error("keys and values, or recurrent states, of more bytes than can be counted");
  constexpr int64_t kMib = int64_t{1} << 20;
  GpuStepCost cost{.fixed = 384 * kMib, .state = *state, .kv_block = *block, .window_block = *window};
  // A third more than what is counted, for scratch memory of single operators.
  const FeedForwardSpec& f = c.ffn;
  const int64_t results = f.experts > 0 ? (int64_t{f.top_k} + 1) * c.d_model * 2 + int64_t{f.experts} * 4 : 0;
  cost.row = (activation_row_bytes(c) + results) * 4 / 3;
  const int64_t sampling = 3 * 4 * c.vocab, biases = 2 * 8 * int64_t{o.max_logit_bias};
  cost.sequence = *state + sampling + biases + token_history_bytes(1, c.vocab, std::min(c.vocab, c.context_length));
  // All rows of steps in flight, and the window that each sequence may come to hold.
  cost.row += o.depth * *window / kBlockTokens;
  cost.sequence += o.window_needs(c).sequence * *window;
  // Rows of drafts are as many as there may be with any number of sequences.
  if (o.most_drafts() > 0) cost.fixed += kMostVerifiedRows * (sampling + biases);
  // Rows of queries of a KV head's group come in eights.
  const AttentionSpec& a = c.attention;
  int64_t part = 0;
  for (const Mixer m : {Mixer::kAttention, Mixer::kWindowAttention}) {
    const HeadShape heads = c.heads_of(m);
    const int64_t group = heads.kv_heads == 0 ? 0 : (a.heads / heads.kv_heads + 7) / 8 * 8;
    part = std::max(part, heads.kv_heads * group * (int64_t{heads.head_dim} + 2) * 4);
  }
  cost.position = c.attention_layers() == 0 ? 0 : (part + kPartKeys - 1) / kPartKeys + 1;
  return cost;
}

Result<EngineOptions> plan_gpu(EngineOptions o, const ModelConfig& c, const GpuMemory& memory) {
  QUIRE_TRY(const GpuStepCost cost, gpu_step_cost(o, c));
  const Plan plan(o, c, memory, cost);
  const bool pool_given = o.kv_tokens > 0, context_given = o.context > 0;
  if (o.max_batch_tokens == 0) o.max_batch_tokens = plan.batch_tokens();
  if (!context_given) {
    o.context = plan.longest_context();
    if (pool_given) o.context = std::min(o.context, o.kv_tokens);
    if (o.context < std::min(kShortestContext, c.context_length))
      o.context = std::min(kShortestContext, c.context_length);
  }
  if (o.max_sequences == 0) o.max_sequences = plan.most_sequences();
  if (!pool_given) {
    o.kv_tokens = plan.pool_tokens();
    o.kv_is_bound = true;
  }
  QUIRE_CHECKED(plan.check(pool_given));
  return o;
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
