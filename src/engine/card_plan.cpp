#include "engine/card_plan.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

// Of a GPU's memory, the driver and what else is always there has some.
constexpr int64_t kOfDriver = int64_t{600} << 20;

EngineOptions as_served(EngineOptions asked) {
  asked.prefix_cache = true;
  asked.speculative.mode = Speculative::kAuto;
  return asked;
}

EngineMemory memory_of_card(int64_t weights, int64_t bytes) {
  return {.host = std::max<int64_t>(0, bytes - weights),
          .gpu = {.total = bytes, .used = weights + kOfDriver, .weights = weights}};
}

// On several cards, each with its part of the layers.
Result<CardPlan> plan_for_split(const ModelConfig& model, const LayerBytes& weights, int64_t bytes, int64_t context,
                                const std::vector<LayerRange>& split) {
  EngineOptions asked = as_served({.device = Device::kCuda, .context = context});
  asked.pipeline_parallel = static_cast<int>(split.size());
  std::vector<StageMemory> stages;
  for (int i = 0; i < asked.pipeline_parallel; ++i) {
    const LayerRange layers = split[static_cast<size_t>(i)];
    stages.push_back({{i, layers}, memory_of_card(weights.of(layers), bytes)});
  }
  CardPlan p;
  QUIRE_TRY(p.plan, resolve_stages(asked, model, {}, stages, false));
  for (int i = 0; i < asked.pipeline_parallel; ++i) {
    const EnginePlan own = p.plan.of_stage(i);
    QUIRE_TRY(const MemoryShares shares, memory_shares(own, model, stages[static_cast<size_t>(i)].memory));
    if (i == 0 || shares.kv_tokens < p.shares.kv_tokens) p.shares = shares;
  }
  return p;
}

}  // namespace

Result<CardPlan> plan_for_card(EngineOptions asked, const ModelConfig& model, int64_t weights, int64_t bytes) {
  const EngineMemory memory = memory_of_card(weights, bytes);
  CardPlan p;
  QUIRE_TRY(p.plan, resolve(as_served(std::move(asked)), model, memory));
  QUIRE_TRY(p.shares, memory_shares(p.plan, model, memory));
  return p;
}

Result<CardFit> fit_card(const ModelConfig& model, const LayerBytes& weights, int64_t bytes, int64_t context) {
  const LayerRange all{0, model.layers};
  CardFit fit;
  for (int cards = 1; cards <= std::min<int>(kMostStages, model.layers); ++cards) {
    std::vector<LayerRange> split;
    if (cards > 1) {
      Result<std::vector<LayerRange>> ranges =
          split_layers(model, weights, 0, std::vector<double>(static_cast<size_t>(cards), 1.0));
      if (!ranges.ok()) break;
      split = std::move(*ranges);
    }
    Result<CardPlan> plan =
        cards == 1 ? plan_for_card({.device = Device::kCuda, .context = context}, model, weights.of(all), bytes)
                   : plan_for_split(model, weights, bytes, context, split);
    if (!plan.ok() && plan.error().fault != Fault::kCapacity) return plan.take_error();
    if (!plan.ok()) continue;
    fit.cards = cards;
    fit.split = std::move(split);
    fit.plan = std::move(*plan);
    break;
  }
  if (!fit.runs()) return fit;
  const EngineOptions alone{.device = Device::kCuda, .max_sequences = 1};
  QUIRE_TRY(const CardPlan longest, plan_for_card(alone, model, weights.of(all), bytes));
  fit.longest_context = longest.plan.context;
  return fit;
}

}  // namespace quire
