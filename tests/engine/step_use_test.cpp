#include "engine/step_use.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

HostMove block_move(int32_t id) {
  return {.device = id, .piece = -1, .page = 0};
}
HostMove state_move(int32_t slot) {
  return {.device = slot, .piece = 1, .page = 0};
}

// Moves of the next step that this one delays, in both directions.
struct Delays {
  std::vector<int32_t> outs, ins, state_outs, state_ins;
  bool operator==(const Delays&) const = default;
};

Delays delays(const StepUse& use, int32_t blocks, int32_t slots) {
  Delays d;
  for (int32_t i = 0; i < blocks; ++i) {
    if (use.delays_out(block_move(i))) d.outs.push_back(i);
    if (use.delays_in(block_move(i))) d.ins.push_back(i);
  }
  for (int32_t i = 0; i < slots; ++i) {
    if (use.delays_out(state_move(i))) d.state_outs.push_back(i);
    if (use.delays_in(state_move(i))) d.state_ins.push_back(i);
  }
  return d;
}

TEST(StepUse, IsOfBlocksAndStatesThatTheStepReadsOrWrites) {
  constexpr int32_t kBlocks = 20, kSlots = 8, kPitch = 4;
  StepBatch step;
  // One token at position 40 (the third block), 32 tokens at [16, 48), a chunk that ends with a block, padding.
  std::vector<Segment> segments = {{.row = 0, .count = 1, .position = 40, .state_slot = 5},
                                   {.row = 1, .count = 32, .position = 16, .state_slot = 2},
                                   {.row = 33, .count = 16, .position = 0, .state_slot = -1},
                                   {}};
  std::vector<int32_t> tables = {3, 4, 5, 19, 6, 7, 8, 18, 9, 17, 17, 17, 16, 16, 16, 16};
  std::vector<int32_t> slot_copies = {0, 1, -1, 4, 2, 3, 6, -1};
  step.segments = {.data = segments.data(), .count = 4, .decodes = 1, .tables = tables.data(), .pitch = kPitch};
  step.arrays.slot_copies = slot_copies.data();
  step.shape.slot_copies = 4;

  StepUse use;
  use.note(step, kBlocks, kSlots);
  EXPECT_EQ(delays(use, kBlocks, kSlots), (Delays{.outs = {5, 7, 8, 9},
                                                  .ins = {3, 4, 5, 6, 7, 8, 9},
                                                  .state_outs = {1, 2, 3, 5},
                                                  .state_ins = {0, 1, 2, 3, 5}}));
  use.clear();
  EXPECT_EQ(delays(use, kBlocks, kSlots), Delays{});
}

TEST(StepUse, OfAModelWithoutStates) {
  StepBatch step;
  std::vector<Segment> segments = {{.row = 0, .count = 1, .position = 0, .state_slot = 0}};
  std::vector<int32_t> tables = {1};
  step.segments = {.data = segments.data(), .count = 1, .decodes = 1, .tables = tables.data(), .pitch = 1};
  StepUse use;
  use.note(step, 2, 0);
  EXPECT_EQ(delays(use, 2, 0), (Delays{.outs = {1}, .ins = {1}, .state_outs = {}, .state_ins = {}}));
}

}  // namespace
}  // namespace quire
