#include "core/signals.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace quire {
namespace {

TEST(SignalNotes, NotesWhatCameAndRestoresWhatWas) {
  static int before = 0;
  before = 0;
  std::signal(SIGUSR1, [](int) { ++before; });
  {
    const SignalNotes notes({SIGUSR1, SIGUSR2});
    EXPECT_EQ(SignalNotes::last(), 0);
    std::raise(SIGUSR1);
    std::raise(SIGUSR2);
    EXPECT_EQ(SignalNotes::last(), SIGUSR2);
    EXPECT_EQ(SignalNotes::count(), 2);
    EXPECT_EQ(SignalNotes::take(), SIGUSR2);
    EXPECT_EQ(SignalNotes::last(), 0);
  }
  EXPECT_EQ(before, 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(before, 1);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST(SignalNotes, WhatIsIgnoredStaysIgnored) {
  std::signal(SIGUSR1, SIG_IGN);
  const SignalNotes notes({SIGUSR1});
  std::raise(SIGUSR1);
  EXPECT_EQ(SignalNotes::count(), 0);
  std::signal(SIGUSR1, SIG_DFL);
}

TEST(SignalNotes, WaitsForASignalOrForAnotherThread) {
  const SignalNotes notes({SIGUSR1});
  std::raise(SIGUSR1);
  while (SignalNotes::count() == 0) notes.wait();
  std::atomic<bool> done{false};
  std::thread other([&] {
    done = true;
    notes.wake();
  });
  while (!done) notes.wait();
  other.join();
}

TEST(SignalNotesDeathTest, ASecondSignalMayEndTheProcess) {
  EXPECT_EXIT(
      {
        const SignalNotes notes({SIGUSR1}, SignalNotes::Second::kEnds);
        std::raise(SIGUSR1);
        if (SignalNotes::take() != SIGUSR1) _exit(1);
        std::raise(SIGUSR1);  // the first since it was looked at
        std::raise(SIGUSR1);
        _exit(2);
      },
      testing::ExitedWithCode(128 + SIGUSR1), "");
}

}  // namespace
}  // namespace quire
