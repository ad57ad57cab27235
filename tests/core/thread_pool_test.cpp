#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire {
namespace {

constexpr int kSizes[] = {1, 2, 3, 4, 7, 16};

TEST(ThreadPool, RunsOnEveryThreadOnce) {
  for (const int size : kSizes) {
    ThreadPool pool(size);
    EXPECT_EQ(pool.size(), size);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> calls(
          static_cast<size_t>(size));  // each thread writes its own: a race shows under TSan
      pool.run([&](int t) { ++calls[static_cast<size_t>(t)]; });
      EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(size), 1));
    }
  }
}

TEST(ThreadPool, SizesBelowOneMeanOne) {
  EXPECT_EQ(ThreadPool(0).size(), 1);
  EXPECT_EQ(ThreadPool(-3).size(), 1);
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

TEST(ThreadPool, ParallelForCoversEveryIndexOnce) {
  for (const int size : kSizes) {
    ThreadPool pool(size);
    for (const int64_t n : {0, 1, 2, 3, 15, 16, 17, 100, 1000}) {
      for (const int64_t grain : {1, 2, 16, 1000, 5000}) {
        std::vector<int> hits(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          ASSERT_TRUE(begin < end && end <= n && end - begin <= grain);
          ASSERT_TRUE(thread >= 0 && thread < size);
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(n), 1))
            << n << " by " << grain << " on " << size;
      }
    }
  }
}

// What one thread writes before a barrier, every other reads after it; a second barrier protects the next
// round.
TEST(ThreadPool, BarriersSeparatePhases) {
  for (const int size : kSizes) {
    ThreadPool pool(size);
    std::vector<int> slot(static_cast<size_t>(size));
    std::atomic<int> wrong{0};
    pool.run([&](int t) {
      for (int phase = 1; phase <= 300; ++phase) {
        slot[static_cast<size_t>(t)] = phase;
        pool.barrier();
        for (const int s : slot) wrong += s != phase;
        pool.barrier();
      }
    });
    EXPECT_EQ(wrong, 0) << size << " threads";
  }
}

TEST(ThreadPool, RegionsOfAllKindsInARow) {
  ThreadPool pool(5);
  int64_t sum = 0, want = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> part(5);
    if (round % 3 == 0) {
      pool.parallel_for(round % 37, 3, [&](int64_t b, int64_t e, int t) {
        for (int64_t i = b; i < e; ++i) part[static_cast<size_t>(t)] += i;
      });
      want += int64_t{round % 37} * (round % 37 - 1) / 2;
    } else {
      pool.run([&](int t) {
        if (round % 3 == 1) pool.barrier();
        part[static_cast<size_t>(t)] += t;
      });
      want += 10;
    }
    sum += std::accumulate(part.begin(), part.end(), int64_t{0});
  }
  EXPECT_EQ(sum, want);
}

// A team that is parked in the kernel must wake up; a thread that comes late to a region must find it.
TEST(ThreadPool, WakesUpAfterUnevenWork) {
  ThreadPool pool(4);
  std::atomic<int64_t> work{0};
  for (int round = 0; round < 40; ++round) {
    pool.run([&](int t) {
      if (t == round % 4)  // one thread keeps the others waiting far beyond their spinning
        for (int i = 0; i < 300000; ++i) work.fetch_add(1, std::memory_order_relaxed);
    });
  }
  EXPECT_EQ(work, 40 * 300000);
}

}  // namespace
}  // namespace quire
