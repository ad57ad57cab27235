// What check_segments lets through, and the words for what it does not.
#include "ops/segments.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

// Two sequences of a step, one decoding.
struct Step {
  Segment segments[2] = {{.row = 0, .count = 1, .position = 37, .state_slot = 1, .anchor = 32},
                         {.row = 1, .count = 70, .position = 64, .state_slot = 0, .anchor = 64}};
  int32_t tables[2 * 9] = {4, 0, 2, -1, -1, -1, -1, -1, -1, 1, 3, 5, 6, 7, 8, 9, 10, 11};
  SegmentArray array() const { return {segments, 2, 1, tables, 9}; }
  void check() const { check_segments(array(), 71, 12, 2); }
};

TEST(Segments, TakesWhatIsRight) {
  Step s;
  s.check();
  s.segments[0].count = 0;  // an empty place, whatever else it holds
  s.segments[0].state_slot = -1;
  s.check();
  check_segments({}, 0, 0, 0);
  // Without recurrent states prompts may go on anywhere.
  s.segments[1].position = s.segments[1].anchor = 65;
  check_segments(s.array(), 71, 12, 0);
}

void expect_fatal(void (*change)(Step&), const char* message) {
  Step s;
  change(s);
  EXPECT_DEATH(s.check(), message);
}

TEST(SegmentsDeathTest, NamesWhatIsWrong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  expect_fatal([](Step& s) { s.tables[1] = 12; }, "segment 0: block 1 is 12 of 12");
  expect_fatal([](Step& s) { s.tables[9 + 8] = -1; }, "segment 1: block 8 is -1 of 12");
  expect_fatal([](Step& s) { s.segments[1].count = 81; }, "segment 1: rows 1 . 81 of 71");
  expect_fatal([](Step& s) { s.segments[1].row = 0; }, "segment 1: rows 0 . 70 of 71, from 1 on");
  expect_fatal([](Step& s) { s.segments[1].position = s.segments[1].anchor = 65; },
               "segment 1: a prompt chunk begins at position 65, not on the grid of 64");
  expect_fatal([](Step& s) { s.segments[0].state_slot = 2; }, "segment 0: state slot 2 of 2");
  expect_fatal([](Step& s) { s.segments[0].anchor = 38; }, "segment 0: a state after 38 tokens at position 37");
  expect_fatal([](Step& s) { s.segments[0].tentative = 2; }, "2 of 1 rows tentative");
  expect_fatal([](Step& s) { s.segments[0].position = 144; }, "segment 0: 10 blocks in a table of 9");
}

}  // namespace
}  // namespace quire
