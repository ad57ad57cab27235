#include "engine/options.h"

#include <algorithm>

#include "engine/memory_plan.h"

namespace quire {
namespace {

int32_t blocks(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace

CacheShape EngineOptions::cache_shape(const ModelConfig& model) const {
  return quire::cache_shape(model, activation_type(device), kv_cache,
                            {.drafts = most_drafts(), .mtp = mtp, .windows_apart = windows_apart(model)});
}

bool EngineOptions::windows_apart(const ModelConfig& model) const {
  return keeps_windows_apart(model, context > 0 ? context : model.context_length);
}

WindowNeeds EngineOptions::window_needs(const ModelConfig& model) const {
  if (!windows_apart(model)) return {};
  const int64_t window = model.attention.window;
  return {.sequence = static_cast<int32_t>(most_window_blocks(window, most_drafts())),
          .steps = blocks(int64_t{depth} * max_batch_tokens),
          .place = blocks(window - 1)};
}

int32_t EngineOptions::window_blocks(const ModelConfig& model) const {
  const WindowNeeds n = window_needs(model);
  const int64_t places = prefix_cache ? state_checkpoints : 0,
                wanted = int64_t{n.sequence} * max_sequences + n.steps + places * n.place,
                few = int64_t{n.sequence} * std::min(max_sequences, kDefaultSequences) + n.steps;
  return static_cast<int32_t>(std::min({wanted, std::max<int64_t>(few, kv_blocks()), int64_t{INT32_MAX} - 1}));
}

int32_t EngineOptions::sampled_rows() const {
  const int32_t drafts = std::min(most_drafts(), max_batch_tokens - max_sequences);
  if (drafts <= 0) return max_sequences;
  const int32_t all = std::min(max_sequences * (1 + most_drafts()), max_batch_tokens);
  return std::max(max_sequences + drafts, std::min(all, kMostVerifiedRows));
}

int32_t EngineOptions::most_swaps() const {
  return swap_bytes > 0 ? blocks(context) + max_sequences + blocks(max_batch_tokens) : 0;
}

int32_t EngineOptions::state_pages(const ModelConfig& model) const {
  const CacheShape shape = cache_shape(model);
  const std::optional<int64_t> block = shape.block_bytes(), state = shape.state_bytes();
  if (!block || !state || *block == 0) return 0;
  return static_cast<int32_t>(std::min((*state + *block - 1) / *block, int64_t{1} << 20));
}

int32_t EngineOptions::cache_moves(const ModelConfig& model) const {
  if (!prefix_cache || prefix_host_bytes == 0) return 0;
  // What a step computes and who comes back takes the place of as much, and a few prompts save and restore a state
  // each.
  constexpr int32_t kStates = 16;
  return 2 * (blocks(context) + blocks(max_batch_tokens) + max_sequences) +
         state_pages(model) * std::min(max_sequences, kStates);
}

StepCapacity EngineOptions::step_capacity(const ModelConfig& model) const {
  return {.rows = max_batch_tokens,
          .segments = max_sequences,
          .table_width = blocks(context),
          .tables = windows_apart(model) ? 2 : 1,
          .logit_rows = sampled_rows(),
          .hidden_rows = pooling == Pooling::kMean ? max_batch_tokens : max_sequences,
          .width = static_cast<int32_t>(model.d_model),
          .scored_rows = max_prompt_logprobs >= 0 ? max_batch_tokens : 0,
          .max_scored_top = static_cast<int32_t>(std::clamp<int64_t>(max_prompt_logprobs, 0, model.vocab)),
          .slot_copies = prefix_cache ? 2 * max_sequences : 0,
          .swaps = most_swaps() + cache_moves(model),
          .past = (prefix_cache ? static_cast<int32_t>(context) : 0) +
                  (speculative.enabled() ? max_sequences * kMostUnnoted : 0),
          .batch_slots = max_sequences,
          .biases = sampled_rows() * max_logit_bias + (speculative.enabled() ? max_sequences * kMostUnnoted : 0),
          .masks = sampled_rows(),
          .vocab = model.vocab,
          .max_top = static_cast<int32_t>(std::min<int64_t>(model.vocab, max_logprobs)),
          .drafts = mtp ? most_drafts() : 0,
          .parts = decode_parts};
}

Status check_options(const EngineOptions& o, const ModelConfig& c) {
  if (o.threads < 0 || o.threads > 1024) return request_error("{} threads: must be between 1 and 1024", o.threads);
  if (o.gpu < 0) return request_error("GPU {}: they are counted from 0", o.gpu);
  if (o.context < 0 || o.context > c.context_length)
    return request_error("a context of {} tokens: the model was trained for 1 to {}", o.context, c.context_length);
  if (o.max_sequences < 0 || o.max_sequences > 4096)
    return request_error("{} sequences: must be between 1 and 4096", o.max_sequences);
  if (o.max_waiting < 1) return request_error("a queue of {} requests: must be at least 1", o.max_waiting);
  const int32_t least = std::max(kChunkTokens, o.max_sequences);
  if (o.max_batch_tokens != 0 && (o.max_batch_tokens < least || o.max_batch_tokens > 65536))
    return request_error("{} batch tokens: must be between {} and 65536{}", o.max_batch_tokens, least,
                         least > kChunkTokens ? ", a row for each sequence that may run" : "");
  if (o.depth < 0 || o.depth > 2) return request_error("a depth of {} steps: must be 1 or 2", o.depth);
  if (!(o.gpu_memory_utilization > 0.0 && o.gpu_memory_utilization <= 1.0))
    return request_error("{} of a GPU's memory: must be above 0 and at most 1", o.gpu_memory_utilization);
  if (o.max_logprobs < 0 || o.max_logprobs > 65536)
    return request_error("{} logprobs: must be between 0 and 65536", o.max_logprobs);
  if (o.max_prompt_logprobs < -1 || o.max_prompt_logprobs > 1024)
    return request_error("{} logprobs of a prompt's tokens: must be between -1 (none) and 1024", o.max_prompt_logprobs);
  if (o.max_logit_bias < 0 || o.max_logit_bias > 65536)
    return request_error("{} logit biases: must be between 0 and 65536", o.max_logit_bias);
  if (o.swap_bytes < 0) return request_error("{} bytes of swap space: must not be negative", o.swap_bytes);
  if (o.state_checkpoints > 65536) return request_error("{} saved states: must be at most 65536", o.state_checkpoints);
  if (o.prefix_host_bytes < 0)
    return request_error("{} bytes of the host for the prefix cache: must not be negative", o.prefix_host_bytes);
  if (o.speculative.tokens < 1 || o.speculative.tokens > kMostDrafts)
    return request_error("{} drafts of a sequence in a step: must be between 1 and {}", o.speculative.tokens,
                         kMostDrafts);
  if (o.volatile_tail < 0) return request_error("a volatile tail of {} tokens: must not be negative", o.volatile_tail);
  if (o.patience_steps < 0) return request_error("a patience of {} steps: must not be negative", o.patience_steps);
  if (o.ageing_steps < 1) return request_error("ageing after {} steps: must be at least 1", o.ageing_steps);
  if (o.first_token_threshold < 0)
    return request_error("a threshold of {} waiting prompts: must not be negative", o.first_token_threshold);
  if (o.kv_tokens != 0 && (o.kv_tokens < std::max<int64_t>(o.context, 1) || o.kv_tokens > (int64_t{1} << 34)))
    return request_error("a KV pool of {} tokens cannot hold one sequence of {}", o.kv_tokens,
                         std::max<int64_t>(o.context, 1));
  return {};
}

Result<EngineOptions> resolve(EngineOptions o, const ModelConfig& c, const EngineMemory& memory) {
  QUIRE_CHECKED(check_options(o, c));
  if (o.threads == 0) o.threads = available_cpus();
  if (o.depth == 0) o.depth = o.device == Device::kCuda ? 2 : 1;
  QUIRE_TRY(o, plan_memory(std::move(o), c, memory));
  if (o.kv_tokens < o.context)
    return request_error("a KV pool of {} tokens cannot hold one sequence of {}", o.kv_tokens, o.context);
  return o;
}

}  // namespace quire
