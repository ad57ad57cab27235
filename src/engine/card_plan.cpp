#include "engine/card_plan.h"

namespace quire {
namespace {

// Of a GPU's memory, the driver and what else is always there has some.
constexpr int64_t kOfDriver = int64_t{600} << 20;

// `cards` of them, as if they were one that large.
Result<CardPlan> plan_for_cards(EngineOptions asked, const ModelConfig& model, int64_t weights, int64_t bytes,
                                int cards) {
  asked.prefix_cache = true;
  asked.speculative.mode = Speculative::kAuto;
  const EngineMemory memory{.host = std::max<int64_t>(0, bytes - weights),
                            .gpu = {.total = cards * bytes, .used = weights + cards * kOfDriver, .weights = weights}};
  CardPlan p;
  QUIRE_TRY(p.plan, resolve(asked, model, memory));
  QUIRE_TRY(p.shares, memory_shares(p.plan, model, memory));
  return p;
}

}  // namespace

Result<CardPlan> plan_for_card(EngineOptions asked, const ModelConfig& model, int64_t weights, int64_t bytes) {
  return plan_for_cards(std::move(asked), model, weights, bytes, 1);
}

Result<CardFit> fit_card(const ModelConfig& model, int64_t weights, int64_t bytes, int64_t context) {
  const EngineOptions asked{.device = Device::kCuda, .context = context};
  CardFit fit;
  for (int cards = 1; cards <= kMostCards; ++cards) {
    Result<CardPlan> plan = plan_for_cards(asked, model, weights, bytes, cards);
    if (!plan.ok() && plan.error().fault != Fault::kCapacity) return plan.take_error();
    if (!plan.ok()) continue;
    fit.cards = cards;
    fit.plan = std::move(*plan);
    break;
  }
  if (!fit.runs()) return fit;
  const EngineOptions alone{.device = Device::kCuda, .max_sequences = 1};
  QUIRE_TRY(const CardPlan longest, plan_for_card(alone, model, weights, bytes));
  fit.longest_context = longest.plan.context;
  return fit;
}

}  // namespace quire
