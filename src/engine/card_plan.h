// What a server without further options would make of a card's memory, or of a machine's, that need not be there.
#pragma once

#include "engine/layer_split.h"
#include "engine/memory_plan.h"

namespace quire {

struct CardPlan {
  EnginePlan plan;
  MemoryShares shares;
};

// `asked` names the device and what is given; prefix cache and drafts are as a server has them. `bytes`: of the card,
// or of the machine. Fault::kCapacity, with numbers, where the model does not fit.
Result<CardPlan> plan_for_card(EngineOptions asked, const ModelConfig& model, int64_t weights, int64_t bytes);

// What a kind of card is for a model.
struct CardFit {
  // On how few such cards it runs, with weights, a step and one sequence; on several each has some of the layers. 0:
  // not even on kMostStages.
  int cards = 0;
  std::vector<LayerRange> split;  // over several
  CardPlan plan;                  // with them, for sequences of the context that was asked about
  int64_t longest_context = 0;    // of one sequence, on one card

  bool runs() const { return cards == 1; }
};

// For sequences of `context` tokens. Errors: those that no memory would help against.
Result<CardFit> fit_card(const ModelConfig& model, const LayerBytes& weights, int64_t bytes, int64_t context);

// Sizes of cards that are common, in the GB that they are sold by. What a program sees of that is less: the driver, and
// codes that correct errors, take some.
inline constexpr int32_t kCommonCards[] = {24, 32, 48, 80, 96, 141, 180};
constexpr int64_t card_bytes(int32_t gb) {
  return (int64_t{gb} << 30) / 100 * 98;
}

}  // namespace quire
