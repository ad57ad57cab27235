// Whose compilation begins next.
#include <gtest/gtest.h>

#include "constraint/compile_queue.h"

namespace quire::test {
namespace {

std::string order(CompileQueue& queue, bool last_place = false) {
  std::string ids;
  while (const auto next = queue.next(last_place)) ids += std::to_string(next->id) + " ";
  return ids;
}

TEST(CompileQueue, ClientsTakeTurnsAndTheirSmallOnesGoFirst) {
  CompileQueue queue;
  queue.add(1, "many", 900);
  queue.add(2, "many", 10);
  queue.add(3, "many", 500);
  queue.add(4, "few", 1000);
  EXPECT_EQ(queue.waiting(), 4);
  EXPECT_EQ(queue.waiting_of("many"), 3);
  EXPECT_EQ(queue.waiting_of("nobody"), 0);
  EXPECT_EQ(order(queue), "4 2 3 1 ");
  EXPECT_EQ(queue.waiting(), 0);
  EXPECT_EQ(queue.running_of("many"), 3);
}

TEST(CompileQueue, WhoeverHasOneRunningGoesLast) {
  CompileQueue queue;
  queue.began("busy");
  queue.add(1, "busy", 1);
  queue.add(2, "idle", 9);
  EXPECT_EQ(order(queue, true), "2 ");  // the last place is not for a client that has one
  EXPECT_EQ(queue.waiting_of("busy"), 1);
  queue.ended("busy");
  EXPECT_EQ(order(queue, true), "1 ");
}

TEST(CompileQueue, ForgetsWhatNobodyWaitsFor) {
  CompileQueue queue;
  queue.add(1, "a", 5);
  queue.add(2, "a", 5);
  EXPECT_TRUE(queue.remove(1, "a"));
  EXPECT_FALSE(queue.remove(1, "a"));
  EXPECT_FALSE(queue.remove(2, "b"));
  EXPECT_EQ(order(queue), "2 ");
  queue.ended("a");
  EXPECT_EQ(queue.running_of("a"), 0);
  EXPECT_EQ(order(queue), "");
}

}  // namespace
}  // namespace quire::test
