#include "core/workspace.h"

#include <gtest/gtest.h>

#include <cstring>

namespace quire {
namespace {

TEST(Workspace, AlignsAndDoesNotOverlap) {
  Workspace w;
  Workspace::Scope scope(w);
  std::vector<std::pair<char*, int64_t>> taken;
  for (const int64_t n : {1, 63, 64, 65, 0, 1000, 3 << 20, 1, 5 << 20, 100}) {
    char* p = scope.take<char>(n);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    std::memset(p, static_cast<int>(taken.size()), static_cast<size_t>(n));
    taken.emplace_back(p, n);
  }
  for (size_t i = 0; i < taken.size(); ++i)
    for (int64_t j = 0; j < taken[i].second; ++j) ASSERT_EQ(taken[i].first[j], static_cast<char>(i));
}

TEST(Workspace, ScopesNestAndGiveBack) {
  Workspace w;
  Workspace::Scope outer(w);
  int* a = outer.take<int>(10);
  a[9] = 42;
  int* first = nullptr;
  for (int i = 0; i < 100; ++i) {
    Workspace::Scope inner(w);
    int* b = inner.take<int>(1000);
    if (i == 0) first = b;
    EXPECT_EQ(b, first) << "the same memory every time";
    Workspace::Scope large(w);
    std::memset(large.take<char>(4 << 20), 1, 4 << 20);  // a piece of its own
  }
  EXPECT_EQ(a[9], 42);
}

// What an operator needs beyond its caller's piece is there for the next operator, too.
TEST(Workspace, KeepsLaterPiecesBetweenNestedScopes) {
  Workspace w;
  Workspace::Scope outer(w);
  outer.take<char>(1 << 20);
  const auto inner = [&](int64_t bytes) {
    Workspace::Scope scope(w);
    scope.take<char>(1000);
    return scope.take<char>(bytes);
  };
  char* const large = inner(6 << 20);
  std::memset(large, 1, 6 << 20);
  EXPECT_EQ(inner(6 << 20), large);
  EXPECT_NE(inner(100), large) << "little has room in the first piece";
  EXPECT_EQ(inner(5 << 20), large);
  std::memset(inner(9 << 20), 2, 9 << 20);  // a larger one takes its place
  char* const larger = inner(9 << 20);
  EXPECT_EQ(inner(6 << 20), larger);
}

TEST(Workspace, RemembersItsHighWaterMarkAndSettlesInOnePiece) {
  Workspace w;
  const auto step = [&] {
    Workspace::Scope scope(w);
    char* a = scope.take<char>(3 << 20);
    char* b = scope.take<char>(5 << 20);
    std::memset(a, 1, 3 << 20);
    std::memset(b, 2, 5 << 20);
    return std::pair(a, b);
  };
  step();
  EXPECT_EQ(w.high_water(), size_t{8} << 20);
  const auto second = step();
  EXPECT_EQ(second.second - second.first, 3 << 20) << "one piece that holds everything";
  EXPECT_EQ(step(), second) << "nothing is allocated any more";
  EXPECT_EQ(w.high_water(), size_t{8} << 20);
}

}  // namespace
}  // namespace quire
