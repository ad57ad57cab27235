// What two snapshots differ by: how often noise is taken for a change, and whether a change is found in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "cli/snapshot/diff.h"
#include "cli/snapshot/statistics.h"

namespace quire::test {
namespace {

using namespace quire::cli::snapshot;

// A machine of this kind: its readings scatter, some are disturbed, and all of a run's move together, as do the fixed
// loops beside them.
struct Noise {
  double deviation = 0.02;  // of a reading
  double disturbed = 0.1;   // the chance of one that is up to twice as slow
  double drift = 0;         // deviation of a run as a whole, which the loops see
};

class Runs {
 public:
  explicit Runs(uint64_t seed) : random_(seed) {}

  Snapshot run(const Noise& n, int figures, int readings, double slower_first = 1) {
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> unit(0, 1);
    const double speed = std::exp(n.drift * normal(random_));
    Snapshot s;
    for (int f = 0; f < figures; ++f) {
      const bool rate = f % 2 == 0;
      Figure figure{.name = fmt::format("figure {}", f), .unit = rate ? "tokens/s" : "s", .more_is_better = rate};
      for (int i = 0; i < readings; ++i) {
        double seconds = std::exp(n.deviation * normal(random_)) / speed * (f == 0 ? slower_first : 1);
        if (unit(random_) < n.disturbed) seconds *= 1 + unit(random_);
        figure.readings.push_back({.value = rate ? 1000 / seconds : seconds,
                                   .compute = 1e12 * speed * std::exp(0.01 * normal(random_)),
                                   .memory = 1e10 * speed * std::exp(0.01 * normal(random_))});
      }
      s.figures.push_back(std::move(figure));
    }
    return s;
  }

 private:
  std::mt19937_64 random_;
};

int changed(const SnapshotDiff& d) {
  return d.count(Verdict::kSlower) + d.count(Verdict::kFaster);
}

TEST(SnapshotStatistics, FollowStudent) {
  // Tables of Student's t: 5% and 1%, two-sided.
  EXPECT_NEAR(student_t(5, 0.05), 2.5706, 1e-4);
  EXPECT_NEAR(student_t(10, 0.01), 3.1693, 1e-4);
  const double values[] = {1, 2, 3, 4, 5};
  const Interval i = mean_interval(values, 0.05);
  EXPECT_NEAR(i.middle, 3, 1e-12);
  EXPECT_NEAR(i.half_width, 2.7764 * std::sqrt(2.5) / std::sqrt(5), 1e-3);
  EXPECT_NEAR(trimmed_mean({1, 2, 3, 4, 1000}), 3, 1e-12);
  EXPECT_FALSE((Interval{0.05, 0.04}.beyond(0.03)));
  EXPECT_TRUE((Interval{-0.08, 0.04}.beyond(0.03)));
}

TEST(SnapshotStatistics, TheSameProgramHasNoChange) {
  Runs runs(1);
  for (const Noise& n : {Noise{}, Noise{.deviation = 0.1, .disturbed = 0.3}, Noise{.drift = 0.15}}) {
    int alarms = 0;
    for (int i = 0; i < 1000; ++i) alarms += changed(diff(runs.run(n, 20, 10), runs.run(n, 20, 10))) > 0 ? 1 : 0;
    EXPECT_LT(alarms, 10) << n.deviation << " " << n.drift;
  }
}

TEST(SnapshotStatistics, ATenthSlowerIsFound) {
  Runs runs(2);
  int found = 0, wrong = 0;
  for (int i = 0; i < 300; ++i) {
    const Noise n{.deviation = 0.01, .disturbed = 0.03};
    const SnapshotDiff d = diff(runs.run(n, 20, 12), runs.run(n, 20, 12, 1.1));
    found += d.changes.front().verdict == Verdict::kSlower ? 1 : 0;
    wrong += changed(d) > 1 ? 1 : 0;
  }
  EXPECT_GT(found, 285);
  EXPECT_LT(wrong, 3);
}

TEST(SnapshotStatistics, WhatTheMachineDidIsUnclear) {
  Runs runs(3);
  const Noise quiet{.deviation = 0.005, .disturbed = 0};
  const Snapshot before = runs.run(quiet, 4, 10);
  Snapshot after = before;
  for (Figure& f : after.figures)
    for (Reading& r : f.readings) {
      r.value *= f.more_is_better ? 0.8 : 1.25;
      r.compute *= 0.8;
      r.memory *= 0.8;
    }
  const SnapshotDiff d = diff(before, after);
  EXPECT_EQ(changed(d), 0);
  EXPECT_EQ(d.count(Verdict::kUnclear), 4);
  EXPECT_NEAR(d.changes.front().drift, -0.2, 0.01);
  EXPECT_NEAR(d.changes.front().normalised.middle, 0, 0.02);
}

TEST(SnapshotStatistics, TurnsFindFourPercent) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal;
  int found = 0, alarms = 0;
  for (int i = 0; i < 1000; ++i) {
    std::vector<double> before, same, slower;
    for (int launch = 0; launch < 10; ++launch) {
      // Both see the same minute, however slow it is.
      const double minute = std::exp(0.3 * normal(random));
      before.push_back(1000 * minute * std::exp(0.008 * normal(random)));
      same.push_back(1000 * minute * std::exp(0.008 * normal(random)));
      slower.push_back(960 * minute * std::exp(0.008 * normal(random)));
    }
    alarms += compare_turns("x", "tokens/s", true, before, same, 20).verdict != Verdict::kSame ? 1 : 0;
    found += compare_turns("x", "tokens/s", true, before, slower, 20).verdict == Verdict::kSlower ? 1 : 0;
  }
  EXPECT_LT(alarms, 5);
  EXPECT_GT(found, 800);
}

TEST(SnapshotStatistics, DiffSaysWhatCannotBeCompared) {
  Runs runs(5);
  Snapshot a = runs.run({}, 3, 10), b = runs.run({}, 3, 10);
  a.hardware.cpu = "one";
  b.hardware.cpu = "another";
  b.figures[1].name = "new";
  b.figures[2].readings.resize(2);
  a.gates = {{.name = "company", .what = "", .result = GateResult::kPassed, .detail = ""}};
  b.gates = {{.name = "company", .what = "", .result = GateResult::kFailed, .detail = ""}};
  const SnapshotDiff d = diff(a, b);
  EXPECT_EQ(d.changes.size(), 1u);
  EXPECT_THAT(d.left_out, testing::ElementsAre("figure 1", "figure 2", "new"));
  EXPECT_THAT(d.remarks, testing::ElementsAre("CPU: one, then another"));
  EXPECT_THAT(d.gates, testing::ElementsAre("company: passed, then failed"));
  EXPECT_EQ(d.newly_failed, 1);
}

}  // namespace
}  // namespace quire::test
