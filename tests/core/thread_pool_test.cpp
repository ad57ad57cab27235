#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "support/sanitizers.h"

namespace quire {
namespace {

constexpr int kSizes[] = {1, 2, 3, 4, 7, 16};

TEST(ThreadPool, RunsOnEveryThreadOnce) {
  for (const int size : kSizes) {
    ThreadPool pool(size);
    EXPECT_EQ(pool.size(), size);
    for (int round = 0; round < 20; ++round) {
      std::vector<int> calls(static_cast<size_t>(size));  // each thread writes its own: a race shows under TSan
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
        EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(n), 1)) << n << " by " << grain << " on " << size;
      }
    }
  }
}

// What anybody writes in one phase, everybody reads in the next.
TEST(ThreadPool, PhasesSeparateWhatTheyShareOut) {
  for (const int size : kSizes) {
    for (const bool ahead : {false, true}) {
      ThreadPool pool(size);
      std::vector<int64_t> slot(37);
      std::atomic<int> wrong{0}, calls{0};
      for (int round = 1; round <= 100; ++round) {
        Phase write(std::ssize(slot)), nothing(0), read(11);
        pool.share([&](int) {
          write.each(ahead, [&](int64_t i, int64_t next) {
            wrong += next != -1 && (next <= i || next >= std::ssize(slot) || !ahead);
            slot[static_cast<size_t>(i)] += round;
            ++calls;
          });
          write.wait();
          nothing.each(ahead, [&](int64_t, int64_t) { ++wrong; });
          nothing.wait();
          read.each(ahead, [&](int64_t, int64_t) {
            for (const int64_t s : slot) wrong += s != int64_t{round} * (round + 1) / 2;
          });
        });
      }
      EXPECT_EQ(wrong, 0) << size << " threads";
      EXPECT_EQ(calls, 100 * std::ssize(slot)) << size << " threads";
    }
  }
}

// Each piece of a phase is done by one thread, and what it writes is there for whoever takes a neighbouring piece of
// the next phase: with more threads than CPUs some are late everywhere.
TEST(ThreadPool, PhaseAfterPhaseSeesWhatTheOneBeforeWrote) {
  constexpr int64_t kPhases = 20, kPieces = 97;
  const auto mixed = [](uint64_t left, uint64_t right, int64_t phase) {
    return (left * 31 + right) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(phase);
  };
  using Row = std::vector<uint64_t>;
  const auto fill = [&](std::vector<Row>& rows, int64_t phase, int64_t i) {
    const Row& before = rows[static_cast<size_t>(phase)];
    const uint64_t left = before[static_cast<size_t>((i + kPieces - 1) % kPieces)],
                   right = before[static_cast<size_t>((i + 1) % kPieces)];
    uint64_t& to = rows[static_cast<size_t>(phase + 1)][static_cast<size_t>(i)];
    to = to * 7 + mixed(left, right, phase);  // a second time would give something else
  };
  std::vector<Row> want(kPhases + 1, Row(kPieces, 1));
  for (int64_t p = 0; p < kPhases; ++p)
    for (int64_t i = 0; i < kPieces; ++i) fill(want, p, i);
  for (const int size : {2, 4, 8}) {
    ThreadPool pool(size);
    for (const bool ahead : {false, true}) {
      for (int round = 0; round < 5; ++round) {
        std::vector<Row> rows(kPhases + 1, Row(kPieces, 1));
        std::deque<Phase> phases;
        for (int64_t p = 0; p < kPhases; ++p) phases.emplace_back(kPieces);
        pool.share([&](int) {
          for (int64_t p = 0; p < kPhases; ++p) {
            Phase& phase = phases[static_cast<size_t>(p)];
            phase.each(ahead, [&](int64_t i, int64_t) {
              if (i == 4 * p) std::this_thread::yield();  // others come to the end first
              fill(rows, p, i);
            });
            phase.wait();
          }
        });
        ASSERT_EQ(rows, want) << size << " threads, round " << round;
      }
    }
  }
}

// Waits until `flag` is set, but not for ever: whether it was.
bool comes(const std::atomic<bool>& flag) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flag && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return flag;
}

// wait() waits for pieces that somebody has, not for threads: neither for one that is in the region and has not begun,
// nor for one that has done some and stays away before its own wait().
TEST(ThreadPool, NobodyWaitsForAThreadWithoutPieces) {
  ThreadPool pool(2);
  for (const bool ahead : {false, true})
    for (const bool takes_some : {false, true}) {
      std::atomic<bool> inside{false}, took{false}, past{false};
      Phase pieces(40);
      std::array<std::atomic<int>, 40> times{};
      bool waited = true;
      pool.share([&](int thread) {
        const auto work = [&] {
          pieces.each(ahead, [&](int64_t i, int64_t) {
            ++times[static_cast<size_t>(i)];
            if (thread == 1) took = true;
            EXPECT_TRUE(thread == 1 || !takes_some || comes(took));
          });
        };
        if (thread == 0) {
          EXPECT_TRUE(comes(inside));
          work();
          pieces.wait();
          past = true;
          return;
        }
        inside = true;
        if (takes_some) work();
        waited = comes(past);
        if (!takes_some) work();
        pieces.wait();
      });
      EXPECT_TRUE(waited) << (ahead ? "ahead, " : "") << (takes_some ? "after some pieces" : "before any");
      for (const std::atomic<int>& t : times) EXPECT_EQ(t, 1);
    }
}

// Holds the thread that gets the signal, as a busy machine would.
std::atomic<int> held{0};
std::atomic<bool> let_go{false};
void hold(int) {
  held = 1;
  while (!let_go) sched_yield();
  held = 2;
}

// Whoever does not come is not waited for: the caller does all the work.
TEST(ThreadPool, NobodyWaitsForALateThread) {
  ThreadPool pool(2);
  pthread_t other{};
  pool.run([&](int t) {
    if (t == 1) other = pthread_self();
  });
  held = 0;
  let_go = false;
  std::signal(SIGUSR1, hold);
  pthread_kill(other, SIGUSR1);
  while (held == 0) sched_yield();
  std::atomic<bool> finished{false};
  std::thread rescuer([&] {  // so that a failure is one, and does not hang
    for (int i = 0; i < 1000 && !finished; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    let_go = true;
  });
  int64_t done = 0;
  for (int round = 0; round < 100; ++round)
    pool.parallel_for(10, 1, [&](int64_t, int64_t, int thread) {
      EXPECT_EQ(thread, 0);
      ++done;
    });
  EXPECT_FALSE(let_go);
  EXPECT_EQ(done, 1000);
  finished = true;
  rescuer.join();
  while (held != 2) sched_yield();
  std::signal(SIGUSR1, SIG_DFL);
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
    } else if (round % 60 == 1) {  // everybody has to come, which takes a while on a busy machine
      pool.run([&](int t) { part[static_cast<size_t>(t)] += t; });
      want += 10;
    } else {
      Phase pieces(7);
      pool.share([&](int t) { pieces.each(true, [&](int64_t i, int64_t) { part[static_cast<size_t>(t)] += i; }); });
      want += 21;
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

// Where there is no room for more threads, those that did start end, and the error says which did not.
TEST(ThreadPoolDeathTest, AThreadThatDoesNotStart) {
  if (test::kSlow) GTEST_SKIP() << "sanitizers take more address space than there would be";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = [] {
    const rlimit room = {uint64_t{3} << 30, uint64_t{3} << 30};
    if (setrlimit(RLIMIT_AS, &room) != 0) _exit(1);
    try {
      ThreadPool pool(100000);
    } catch (const std::system_error& e) {
      const auto tasks = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
      std::fprintf(stderr, "%s; %td left\n", e.what(), tasks);
      _exit(e.code() == std::errc::resource_unavailable_try_again ? 42 : 2);
    }
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(42), "thread [0-9]+ of 100000 does not start.*; 1 left");
}

}  // namespace
}  // namespace quire
