#include "engine/plan.h"

#include <algorithm>
#include <optional>

#include "engine/memory_plan.h"

namespace quire {
namespace {

int32_t block_count(int64_t tokens) {
  return static_cast<int32_t>(blocks_of(tokens));
}

}  // namespace

CacheShape EnginePlan::cache_shape(const ModelConfig& model) const {
  const int64_t longest = context > 0 ? context : model.context_length;
  return quire::cache_shape(model, activation_type(device), kv_cache,
                            {.drafts = most_drafts(), .mtp = mtp, .window = pool_window(model, longest)});
}

LayerRange EnginePlan::own_layers(const ModelConfig& model) const {
  return stages.empty() ? LayerRange{0, model.layers} : stages[static_cast<size_t>(stage)].layers;
}

int EnginePlan::stages_on_gpu() const {
  const auto same = std::ranges::count(stages, gpu, &PlannedStage::gpu);
  return std::max(1, static_cast<int>(same));
}

EnginePlan EnginePlan::of_stage(int i) const {
  EnginePlan p = *this;
  if (stages.empty()) return p;
  p.stage = i;
  p.gpu = stages[static_cast<size_t>(i)].gpu;
  if (device != Device::kCuda) p.threads = std::max(1, threads / stage_count());
  return p;
}

std::string EnginePlan::stage_text(const ModelConfig& model) const {
  const LayerRange layers = own_layers(model);
  return fmt::format("stage {}{}, layers {} to {}", stage,
                     device == Device::kCuda ? fmt::format(", GPU {}", gpu) : std::string(), layers.first,
                     layers.end - 1);
}

CacheShape EnginePlan::own_cache_shape(const ModelConfig& model) const {
  return stages.empty() ? cache_shape(model) : cache_part(model, cache_shape(model), own_layers(model));
}

int64_t EnginePlan::page_bytes(const ModelConfig& model) const {
  constexpr int64_t kAlign = 64;
  const CachePools pools = own_cache_shape(model).pools().value_or(CachePools{{}});
  const int64_t pieces = std::max(1, state_pages(model)), block = pools[kKvPool].bytes;
  if (block == 0 && state_pages(model) == 0) return 0;
  const int64_t piece = (state_bytes(pools) + pieces - 1) / pieces;
  return std::max(block, (piece + kAlign - 1) / kAlign * kAlign);
}

WindowNeeds EnginePlan::window_needs(const CachePoolSpec& pool) const {
  // While memory is planned the context may become so short that windows need no pool of their own any more.
  if (!pool.is_window() || (context > 0 && context <= pool.window)) return {};
  return {.sequence = static_cast<int32_t>(most_window_blocks(pool.window, most_drafts())),
          .steps = block_count(int64_t{steps_in_flight()} * max_batch_tokens),
          .place = block_count(pool.window - 1)};
}

PoolCounts EnginePlan::wanted_units(const CachePools& pools) const {
  const int64_t places = prefix_cache ? state_checkpoints : 0;
  PoolCounts counts;
  for (const CachePoolSpec& pool : pools) {
    int64_t units = kv_blocks();
    if (pool.unit == CachePoolSpec::Unit::kSequence) {
      units = max_sequences + places;
    } else if (pool.is_window()) {
      const WindowNeeds n = window_needs(pool);
      const int64_t wanted = int64_t{n.sequence} * max_sequences + n.steps + places * n.place,
                    few = int64_t{n.sequence} * std::min(max_sequences, kDefaultSequences) + n.steps;
      units = std::min({wanted, std::max<int64_t>(few, kv_blocks()), int64_t{INT32_MAX} - 1});
    }
    counts.push_back(static_cast<int32_t>(units));
  }
  return counts;
}

int32_t EnginePlan::sampled_rows() const {
  const int32_t drafts = std::min(most_drafts(), max_batch_tokens - max_sequences);
  if (drafts <= 0) return max_sequences;
  const int32_t all = std::min(max_sequences * (1 + most_drafts()), max_batch_tokens);
  return std::max(max_sequences + drafts, std::min(all, kMostVerifiedRows));
}

int32_t EnginePlan::most_swaps() const {
  return swap_bytes > 0 ? block_count(context) + max_sequences + block_count(max_batch_tokens) : 0;
}

int32_t EnginePlan::state_pages(const ModelConfig& model) const {
  const CachePools pools = cache_shape(model).pools().value_or(CachePools{{}});
  const int64_t block = pools[kKvPool].bytes;
  return block == 0 ? 0 : static_cast<int32_t>(std::min((state_bytes(pools) + block - 1) / block, int64_t{1} << 20));
}

int32_t EnginePlan::cache_moves(const ModelConfig& model) const {
  if (!prefix_cache || prefix_host_bytes == 0) return 0;
  // What a step computes and who comes back takes the place of as much, and a few prompts save and restore a state
  // each.
  constexpr int32_t kStates = 16;
  return 2 * (block_count(context) + block_count(max_batch_tokens) + max_sequences) +
         state_pages(model) * std::min(max_sequences, kStates);
}

StepCapacity EnginePlan::step_capacity(const ModelConfig& model) const {
  return {.rows = max_batch_tokens,
          .segments = max_sequences,
          .table_width = block_count(context),
          .tables = block_pools(cache_shape(model).pools().value_or(CachePools{{}})),
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
          .coordinates = encoder.any() ? 3 : 0,
          .ends = encoder.whole > 0,
          .parts = decode_parts};
}

std::string EnginePlan::text() const {
  return fmt::format("{} sequence{} of up to {} tokens, steps of {} tokens{}", max_sequences,
                     max_sequences == 1 ? "" : "s", context, max_batch_tokens,
                     token_rounding(activations) == TokenRounding::kNone
                         ? ""
                         : fmt::format(", prompts with {} activations", activations_name(activations)));
}

namespace {

Result<EnginePlan> resolve_plan(EnginePlan plan, const ModelConfig& model, const EngineMemory& memory) {
  plan.encoder = memory.encoder;
  if (plan.max_batch_tokens != 0 && plan.max_batch_tokens < plan.encoder.whole)
    return request_error("{} batch tokens: must be at least {}, because one step computes all tokens of a picture",
                         plan.max_batch_tokens, plan.encoder.whole);
  if (plan.threads == 0) plan.threads = available_cpus();
  if (plan.depth == 0) plan.depth = plan.device == Device::kCuda || plan.stage_count() > 1 ? 2 : 1;
  QUIRE_TRY(plan, plan_memory(std::move(plan), model, memory));
  if (plan.kv_tokens < plan.context)
    return request_error("a KV pool of {} tokens cannot hold one sequence of {}", plan.kv_tokens, plan.context);
  return plan;
}

}  // namespace

Result<EnginePlan> resolve(const EngineOptions& options, const ModelConfig& model, const EngineMemory& memory,
                           bool mtp) {
  QUIRE_CHECKED(check_options(options, model));
  EnginePlan plan{options};
  plan.mtp = mtp;
  return resolve_plan(std::move(plan), model, memory);
}

Result<EnginePlan> resolve_stages(const EngineOptions& options, const ModelConfig& model, const EngineMemory& memory,
                                  const std::vector<StageMemory>& stages, bool mtp) {
  QUIRE_CHECKED(check_options(options, model));
  EnginePlan whole{options};
  whole.mtp = mtp;
  for (const StageMemory& s : stages) whole.stages.push_back(s.stage);
  if (options.device != Device::kCuda) return resolve_plan(std::move(whole), model, memory);
  // Less of anything takes less memory: what none has more of, all have room for.
  std::optional<EnginePlan> least;
  for (int i = 0; i < whole.stage_count(); ++i) {
    const EnginePlan asked = whole.of_stage(i);
    QUIRE_TRY(EnginePlan plan,
              resolve_plan(asked, model, stages[static_cast<size_t>(i)].memory).context(asked.stage_text(model)));
    if (least) {
      const auto bound = [](auto& a, const auto& b) { a = std::min(a, b); };
      bound(least->context, plan.context), bound(least->max_sequences, plan.max_sequences);
      bound(least->max_batch_tokens, plan.max_batch_tokens), bound(least->kv_tokens, plan.kv_tokens);
      bound(least->state_checkpoints, plan.state_checkpoints), bound(least->decode_parts, plan.decode_parts);
      bound(least->swap_bytes, plan.swap_bytes), bound(least->prefix_host_bytes, plan.prefix_host_bytes);
    } else {
      least = std::move(plan);
    }
  }
  least->stage = 0;
  least->gpu = options.gpu;
  return std::move(*least);
}

}  // namespace quire
