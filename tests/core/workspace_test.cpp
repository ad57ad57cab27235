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

TEST(Workspace, RemembersItsHighWaterMark) {
  Workspace w;
  for (int i = 0; i < 2; ++i) {
    Workspace::Scope scope(w);
    std::memset(scope.take<char>(3 << 20), 1, 3 << 20);
    std::memset(scope.take<char>(5 << 20), 2, 5 << 20);
  }
  EXPECT_EQ(w.high_water(), int64_t{8} << 20);
  Workspace moved = std::move(w);
  EXPECT_EQ(moved.high_water(), int64_t{8} << 20);
}

TEST(Workspace, HoldsWhatItWasMadeForAndNoMore) {
  Result<Workspace> w = Workspace::create((5 << 20) + 100);
  ASSERT_TRUE(w.ok());
  {
    Workspace::Scope scope(*w);
    std::memset(scope.take<char>((5 << 20) + 100), 1, (5 << 20) + 100);
    EXPECT_DEATH(scope.take<char>(1 << 20), "1048576 bytes of scratch memory: 5243008 of 6291456 are in use");
  }
  const Result<Workspace> impossible = Workspace::create(int64_t{1} << 60);
  ASSERT_FALSE(impossible.ok());
  EXPECT_EQ(impossible.error().fault, Fault::kCapacity);
}

}  // namespace
}  // namespace quire
