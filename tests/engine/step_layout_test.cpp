// The table of a step's arrays (model/step.h): where they lie, and what of them goes to the backend.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "model/step.h"

namespace quire::test {
namespace {

using Copied = StepArrayRow::Copied;

StepCapacity random_capacity(std::mt19937& random) {
  const auto up_to = [&](int32_t most) { return static_cast<int32_t>(random() % static_cast<uint32_t>(most + 1)); };
  StepCapacity c{.rows = 1 + up_to(200), .segments = 1 + up_to(30), .table_width = 16 + up_to(50)};
  c.tables = 1 + up_to(1);
  c.logit_rows = c.segments + up_to(60);
  c.hidden_rows = up_to(40);
  c.scored_rows = up_to(40);
  c.slot_copies = up_to(20);
  c.swaps = up_to(20);
  c.past = up_to(500);
  c.batch_slots = c.segments;
  c.biases = up_to(100);
  c.masks = up_to(1) * c.logit_rows;
  c.vocab = 1 + up_to(3000);
  c.drafts = up_to(3);
  c.coordinates = 3 * up_to(1);
  c.ends = c.coordinates > 0 && up_to(1) == 1;
  return c;
}

// Each number from none to as many as there can be.
StepShape random_shape(const StepCapacity& c, std::mt19937& random) {
  const auto up_to = [&](int32_t most) { return static_cast<int32_t>(random() % static_cast<uint32_t>(most + 1)); };
  StepShape s{.rows = up_to(c.rows), .segments = up_to(c.segments), .logit_rows = up_to(c.logit_rows)};
  s.decodes = up_to(s.segments);
  s.hidden_rows = up_to(c.hidden_rows);
  s.scored_rows = up_to(c.scored_rows);
  s.slot_copies = up_to(c.slot_copies);
  s.swap_outs = up_to(c.swaps);
  s.swap_ins = up_to(c.swaps);
  s.history_updates = up_to(s.segments);
  s.past_updates = up_to(s.segments);
  s.past_tokens = up_to(c.past);
  s.biases = up_to(c.biases);
  s.masks = up_to(c.masks);
  s.table_width = up_to(c.table_width);
  s.draft_passes = up_to(c.drafts);
  s.follows = c.drafts > 0 && up_to(1) == 1;
  s.pictures = c.coordinates > 0 && up_to(1) == 1;
  return s;
}

// Addresses of the arrays, in the order of their rows.
std::vector<int64_t> offsets_of(const StepLayout& layout) {
  std::byte* const base = reinterpret_cast<std::byte*>(int64_t{1} << 40);  // nothing is read
  const StepArrays arrays = layout.arrays(base);
  std::vector<int64_t> offsets;
  for (const StepArrayRow& row : step_array_rows()) {
    // The member of this row is the one that its set() changes.
    StepArrays other = arrays;
    row.set(other, base - 1);
    std::byte* members[2][sizeof(StepArrays) / sizeof(void*)];
    std::memcpy(members[0], &arrays, sizeof(arrays));
    std::memcpy(members[1], &other, sizeof(other));
    int changed = 0;
    for (size_t i = 0; i < std::size(members[0]); ++i)
      if (members[0][i] != members[1][i]) offsets.push_back(members[0][i] - base), ++changed;
    EXPECT_EQ(changed, 1);
  }
  return offsets;
}

TEST(StepLayout, GivesEachArrayItsOwnAlignedPlace) {
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    const StepCapacity c = random_capacity(random);
    const StepLayout layout(c);
    const std::vector<int64_t> offsets = offsets_of(layout);
    int64_t end = 0;
    for (size_t r = 0; r < offsets.size(); ++r) {
      const StepArrayRow& row = step_array_rows()[r];
      EXPECT_GE(offsets[r], end);
      EXPECT_EQ(offsets[r] % 256, 0);
      end = offsets[r] + row.most(c) * row.element_bytes;
    }
    EXPECT_LE(end, layout.bytes());
  }
}

TEST(StepLayout, CopiesWhatAStepUsesAndNothingBehindIt) {
  std::mt19937 random(6);
  for (int i = 0; i < 2000; ++i) {
    const StepCapacity c = random_capacity(random);
    const StepShape s = random_shape(c, random);
    const StepLayout layout(c);
    const std::vector<int64_t> offsets = offsets_of(layout);
    int64_t with_step = 0, later = 0;
    for (size_t r = 0; r < offsets.size(); ++r) {
      const StepArrayRow& row = step_array_rows()[r];
      const int64_t used = row.used(c, s);
      ASSERT_LE(used, row.most(c)) << "row " << r;
      const int64_t end = used == 0 ? 0 : offsets[r] + used * row.element_bytes;
      if (row.copied == Copied::kWithStep) with_step = std::max(with_step, end);
      if (row.copied == Copied::kLater) later = std::max(later, end);
    }
    EXPECT_EQ(layout.used_bytes(s), with_step);
    EXPECT_EQ(layout.later_bytes(s), later == 0 ? 0 : later - layout.later_begin());
    EXPECT_GE(layout.later_begin(), with_step);
  }
}

TEST(StepLayout, HasNoMasksWhereThereCanBeNone) {
  StepCapacity c{.rows = 4, .segments = 2, .table_width = 16, .logit_rows = 2, .batch_slots = 2, .vocab = 100};
  std::vector<std::byte> memory(1 << 16);
  EXPECT_EQ(StepLayout(c).batch(memory.data(), {.rows = 1}, nullptr).arrays.masks, nullptr);
  c.masks = 2;
  EXPECT_NE(StepLayout(c).batch(memory.data(), {.rows = 1}, nullptr).arrays.masks, nullptr);
}

// Room for the longest contexts of many sequences is no reason to copy it: of a server for 256 sequences of 262,144
// tokens, one sequence that generates with drafts.
TEST(StepLayout, StepsOfGeneratedTokensAreShort) {
  StepCapacity c{.rows = 2048, .segments = 256, .table_width = 16384, .logit_rows = 512};
  c.scored_rows = 2048;
  c.slot_copies = 512;
  c.past = 262144;
  c.batch_slots = 256;
  c.biases = 512 * 1024;
  c.masks = 512;
  c.vocab = 248320;
  c.drafts = 3;
  c.coordinates = 3;
  StepShape s{.rows = 4, .decode_rows = 4, .segments = 1, .decodes = 1, .logit_rows = 4, .decode_logit_rows = 4};
  s.table_width = 64;
  s.draft_passes = 3;
  s.follows = true;
  const StepLayout layout(c);
  EXPECT_GT(layout.bytes(), int64_t{16} << 20);
  EXPECT_LT(layout.used_bytes(s), int64_t{384} << 10);
}

}  // namespace
}  // namespace quire::test
