// What a server without further options would make of a card's memory, or of a machine's, that need not be there.
#pragma once

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
  // How many such cards have the memory for weights, a step and one sequence, all of their memory taken together. 1: it
  // runs there. More: no fewer would do, if the model could be split over them. 0: not even kMostCards.
  int cards = 0;
  // With one card alone.
  CardPlan plan;                // for sequences of the context that was asked about
  int64_t longest_context = 0;  // of one sequence

  bool runs() const { return cards == 1; }
};
inline constexpr int kMostCards = 64;

// For sequences of `context` tokens. Errors: those that no memory would help against.
Result<CardFit> fit_card(const ModelConfig& model, int64_t weights, int64_t bytes, int64_t context);

// Sizes of cards that are common, in the GB that they are sold by. What a program sees of that is less: the driver, and
// codes that correct errors, take some.
inline constexpr int32_t kCommonCards[] = {24, 32, 48, 80, 96, 141, 180};
constexpr int64_t card_bytes(int32_t gb) {
  return (int64_t{gb} << 30) / 100 * 98;
}

}  // namespace quire
