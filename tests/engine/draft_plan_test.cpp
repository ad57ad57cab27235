#include "engine/draft_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace quire {
namespace {

// One axis at a time: 1 ms, and so much more for each sequence, row beyond the first and kept token.
StepCosts linear(double sequence, double row, double key, double mtp = 0) {
  StepCosts::Points p{.sequences = {1, 64}, .rows = {1, 8}, .keys = {0, 10000}, .mtp_draft_seconds = mtp};
  for (const double s : p.sequences)
    for (const double r : p.rows)
      for (const double k : p.keys) p.seconds.push_back(1e-3 + sequence * s + row * s * (r - 1) + key * k);
  return StepCosts::make(p).value();
}
AcceptanceAverages::Rates constant(float rate) {
  AcceptanceAverages::Rates r;
  for (auto& source : r) source.fill(rate);
  return r;
}
struct Sequences {
  explicit Sequences(const std::vector<float>& rates, int8_t mtp = kMostDrafts, int8_t lookup = 0) {
    for (const float r : rates) averages.emplace_back(constant(r));
    for (const AcceptanceAverages& a : averages) offers.push_back({&a, {mtp, lookup}});
    choices.resize(offers.size());
  }
  DraftPlan plan(const StepCosts& costs, int64_t budget = 100000) {
    return plan_drafts(costs, offers, 1000, budget, choices);
  }
  std::vector<int> counts() const {
    std::vector<int> n;
    for (const DraftChoice& c : choices) n.push_back(c.count);
    return n;
  }
  std::vector<AcceptanceAverages> averages;
  std::vector<DraftOffer> offers;
  std::vector<DraftChoice> choices;
};

TEST(StepCosts, InterpolateAndGoOn) {
  const StepCosts c = linear(1e-5, 1e-6, 1e-8);
  EXPECT_NEAR(c.seconds(1, 1, 0), 1e-3 + 1e-5, 1e-12);
  EXPECT_NEAR(c.seconds(32, 32, 5000), 1e-3 + 32e-5 + 5e-5, 1e-12);
  EXPECT_NEAR(c.seconds(32, 96, 5000), 1e-3 + 32e-5 + 5e-5 + 64e-6, 1e-12);
  EXPECT_NEAR(c.seconds(128, 128, 20000), 1e-3 + 128e-5 + 2e-4, 1e-12) << "beyond the last point";
  EXPECT_NEAR(c.seconds(1, 0.5, -3), 1e-3 + 1e-5, 1e-12) << "before the first";
}

TEST(StepCosts, RefuseTablesThatAreNone) {
  const auto says = [](const StepCosts::Points& p) { return StepCosts::make(p).error().message; };
  EXPECT_THAT(says({{1}, {1, 1}, {0}, {1, 1}}), testing::HasSubstr("does not ascend"));
  EXPECT_THAT(says({{1}, {}, {0}, {}}), testing::HasSubstr("empty"));
  EXPECT_THAT(says({{1}, {1, 2}, {0}, {1}}), testing::HasSubstr("1 times for 1 x 2 x 1"));
  EXPECT_THAT(says({{1}, {1}, {0}, {0}}), testing::HasSubstr("0 s"));
  EXPECT_THAT(says({{1}, {1}, {0}, {NAN}}), testing::HasSubstr("nan"));
  EXPECT_THAT(says({{1}, {1}, {0}, {1}, -1}), testing::HasSubstr("MTP"));
}

TEST(StepCosts, FollowWhatIsObserved) {
  StepCosts c = linear(1e-5, 1e-6, 0);
  const double before = c.seconds(64, 64, 0), apart = c.seconds(1, 1, 0);
  for (int i = 0; i < 200; ++i) c.observe(64, 64, 0, 2 * before);
  EXPECT_NEAR(c.seconds(64, 64, 0), 2 * before, 0.01 * before);
  EXPECT_EQ(c.seconds(1, 1, 0), apart);
  for (int i = 0; i < 300; ++i) c.observe(10, 30, 4000, 5e-3);
  EXPECT_NEAR(c.seconds(10, 30, 4000), 5e-3, 1e-4);
  const double now = c.seconds(10, 30, 4000);
  for (const double bad : {0.0, -1.0, static_cast<double>(NAN), static_cast<double>(INFINITY)})
    c.observe(10, 30, 4000, bad);
  EXPECT_EQ(c.seconds(10, 30, 4000), now);
  c.observe(10, 30, 4000, 1e9);
  EXPECT_LT(c.seconds(10, 30, 4000), 1.25 * now) << "one step that hung";
}

TEST(AcceptanceAverages, LearnEachDepthFromTheDraftsThatWereReached) {
  AcceptanceAverages a(constant(0.5f));
  for (int i = 0; i < 300; ++i) a.observe(DraftSource::kMtp, 4, 2);
  EXPECT_NEAR(a.rate(DraftSource::kMtp, 1), 1, 0.02);
  EXPECT_NEAR(a.rate(DraftSource::kMtp, 2), 1, 0.02);
  EXPECT_NEAR(a.rate(DraftSource::kMtp, 3), 0, 0.02);
  EXPECT_EQ(a.rate(DraftSource::kMtp, 4), 0.5f) << "never reached";
  for (int i = 0; i < 2000; ++i) a.observe(DraftSource::kMtp, 1, 1);
  EXPECT_GT(a.rate(DraftSource::kMtp, 3), 0.9f) << "not drafted: as usual beside the depth before";
  EXPECT_EQ(a.rate(DraftSource::kLookup, 1), 0.5f);
  AcceptanceAverages all(constant(0.5f));
  all.observe(DraftSource::kLookup, 7, 7);
  for (int d = 1; d <= kMostDrafts; ++d) EXPECT_GT(all.rate(DraftSource::kLookup, d), 0.5f);
  all.observe(DraftSource::kLookup, 0, 0);
}

TEST(AcceptanceAverages, ForgetAndStayShares) {
  std::mt19937 gen(1);
  AcceptanceAverages a(constant(0.2f));
  double mean = 0;
  for (int i = 0; i < 2000; ++i) {
    a.observe(DraftSource::kMtp, 1, gen() % 10 < 8);
    if (i >= 1000) mean += a.rate(DraftSource::kMtp, 1) / 1000;
    ASSERT_TRUE(a.rate(DraftSource::kMtp, 1) >= 0 && a.rate(DraftSource::kMtp, 1) <= 1);
  }
  EXPECT_NEAR(mean, 0.8, 0.03);
}

TEST(PlanDrafts, TakesWhatPays) {
  // A row costs 10% of a step.
  Sequences one({0.7f});
  DraftPlan p = one.plan(linear(0, 1e-4, 0));
  EXPECT_THAT(one.counts(), testing::ElementsAre(4)) << "2.77 tokens in 1.4 ms: another 0.17 for 0.1 ms does not pay";
  EXPECT_EQ(p.rows, 5);
  EXPECT_NEAR(p.tokens, 1 + 0.7 + 0.49 + 0.343 + 0.2401, 1e-6);
  EXPECT_NEAR(p.seconds, 1.4e-3, 1e-9);
  EXPECT_EQ(Sequences({0.7f}).plan(linear(0, 1, 0)).rows, 1) << "rows that cost more than a step";
  EXPECT_EQ(Sequences({0.0f}).plan(linear(0, 1e-9, 0)).rows, 1) << "drafts that never hold";
  EXPECT_EQ(Sequences({1.0f}).plan(linear(0, 1e-9, 0)).rows, 8);
  EXPECT_EQ(Sequences({}).plan(linear(0, 1e-9, 0)).rows, 0);
}

TEST(PlanDrafts, EachSequenceHasItsOwnNumber) {
  Sequences s({0.95f, 0.1f, 0.7f, 0.0f});
  s.plan(linear(0, 1e-4, 0));
  EXPECT_GT(s.choices[0].count, s.choices[2].count);
  EXPECT_GT(s.choices[2].count, 0);
  EXPECT_EQ(s.choices[1].count, 0);
  EXPECT_EQ(s.choices[3].count, 0);
}

TEST(PlanDrafts, DraftsFromTheSourceThatPromisesMore) {
  Sequences s({0.8f, 0.8f, 0.8f}, 3, 0);
  s.offers[0].count = {3, 3};  // as good, and free
  s.offers[1].count = {3, 2};
  s.plan(linear(0, 1e-6, 0, 1e-9));
  EXPECT_EQ(s.choices[0].source, DraftSource::kLookup);
  EXPECT_EQ(s.choices[1].source, DraftSource::kMtp);
  EXPECT_EQ(s.choices[2].source, DraftSource::kMtp);
  EXPECT_THAT(s.counts(), testing::ElementsAre(3, 3, 3));
  s.plan(linear(0, 1e-6, 0, 1));
  EXPECT_THAT(s.counts(), testing::ElementsAre(3, 0, 0)) << "MTP's drafts cost a second each";
}

TEST(PlanDrafts, StaysWithinTheRows) {
  std::mt19937 gen(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> rates(1 + gen() % 20);
    for (float& r : rates) r = static_cast<float>(gen() % 101) / 100;
    Sequences s(rates);
    for (DraftOffer& o : s.offers) o.count = {static_cast<int8_t>(gen() % 8), static_cast<int8_t>(gen() % 8)};
    const auto budget = static_cast<int64_t>(gen() % 100);
    const DraftPlan p = s.plan(linear(1e-6, 1e-6, 0), budget);
    int64_t rows = std::ssize(rates);
    for (size_t i = 0; i < rates.size(); ++i) {
      const DraftChoice& c = s.choices[i];
      ASSERT_LE(c.count, s.offers[i].count[static_cast<size_t>(c.source)]);
      rows += c.count;
    }
    ASSERT_EQ(rows, p.rows);
    ASSERT_LE(rows, std::max(budget, std::ssize(rates)));
  }
}

TEST(PlanDrafts, NumbersRiseWithAcceptanceAndFallWithCosts) {
  for (const double row : {1e-6, 1e-5, 5e-5, 1e-4, 3e-4}) {
    int64_t before = 0;
    for (int percent = 0; percent <= 100; ++percent) {
      const int64_t rows =
          Sequences(std::vector<float>(8, static_cast<float>(percent) / 100)).plan(linear(0, row, 0)).rows;
      EXPECT_GE(rows, before) << percent << "% at " << row;
      EXPECT_LE(rows - before, 64) << "no cliff";
      before = rows;
    }
  }
  for (const float rate : {0.3f, 0.6f, 0.9f}) {
    int64_t before = 1000;
    for (double row = 1e-6; row < 1e-2; row *= 1.1) {
      const int64_t rows = Sequences(std::vector<float>(8, rate)).plan(linear(0, row, 0)).rows;
      EXPECT_LE(rows, before) << rate << " at " << row;
      before = rows;
    }
  }
}

TEST(PlanDrafts, ExpectedSpeedIsNeverBelowThatOfNoDrafts) {
  std::mt19937 gen(4);
  for (int round = 0; round < 2000; ++round) {
    StepCosts::Points p{.sequences = {1, 4, 16}, .rows = {1, 2, 4, 8}, .keys = {0, 1000}};
    for (int i = 0; i < 24; ++i) p.seconds.push_back(1e-3 * static_cast<double>(1 + gen() % 100));
    p.mtp_draft_seconds = 1e-4 * static_cast<double>(gen() % 10);
    const StepCosts costs = StepCosts::make(p).value();
    std::vector<float> rates(1 + gen() % 20);
    for (float& r : rates) r = static_cast<float>(gen() % 101) / 100;
    const auto n = static_cast<double>(rates.size());
    const DraftPlan plan = Sequences(rates).plan(costs);
    ASSERT_GE(plan.tokens / plan.seconds, n / costs.seconds(n, n, 1000) * (1 - 1e-12));
  }
}

TEST(ProbeDue, CostsAtMostItsShare) {
  EXPECT_FALSE(probe_due(1e-3, 1.1e-3, 19));
  EXPECT_TRUE(probe_due(1e-3, 1.1e-3, 21));
  EXPECT_TRUE(probe_due(1e-3, 1e-3, 0)) << "free";
}

// An H200 with the shapes of 35B-A3B, 40 layers: the experts of 1, 2, 4 and 8 rows take 25.5, 31.5, 39.5 and 60.4 us a
// layer, a plain step 2.57 ms, an MTP draft 120 us. From 16 rows on what experts take is made up: slower growth until
// all are read, and products at the end.
StepCosts h200() {
  const auto experts = [](double rows) {
    const std::pair<double, double> points[] = {{1, 25.5},  {2, 31.5},  {4, 39.5},    {8, 60.4},
                                                {16, 95},   {32, 150},  {64, 220},    {128, 300},
                                                {256, 380}, {512, 560}, {1024, 1000}, {2048, 1900}};
    size_t i = 0;
    while (points[i + 1].first < rows) ++i;
    const double share = (rows - points[i].first) / (points[i + 1].first - points[i].first);
    return 40e-6 * (points[i].second + share * (points[i + 1].second - points[i].second));
  };
  StepCosts::Points p{.sequences = {1, 2, 4, 8, 16, 32, 64, 128, 256},
                      .rows = {1, 2, 3, 4, 5, 6, 7, 8},
                      .keys = {1000},
                      .mtp_draft_seconds = 120e-6};
  for (const double s : p.sequences)
    for (const double r : p.rows) p.seconds.push_back(1.55e-3 + 5e-6 * s + experts(s * r));
  return StepCosts::make(p).value();
}

// Steps of sequences whose drafts hold as often as is said here, planned with averages that have to learn that.
TEST(PlanDrafts, SimulatedSpeedIsNearTheBestFixedNumberAndNeverFarBelowPlain) {
  const StepCosts truth = h200();
  std::mt19937 gen(5);
  std::uniform_real_distribution<double> uniform;
  int64_t simulated = 0;
  for (const double acceptance : {0.3, 0.7, 0.8, 0.9}) {
    for (const int n : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
      const double count = n;
      const double plain = count / truth.seconds(count, count, 1000);
      double best = plain, tokens_of_k = 1, likelihood = 1;
      int best_k = 0;
      for (int k = 1; k <= kMostDrafts; ++k) {
        tokens_of_k += likelihood *= acceptance;
        const double rate =
            count * tokens_of_k / (truth.seconds(count, count * (k + 1), 1000) + k * truth.mtp_draft_seconds());
        if (rate > best) best = rate, best_k = k;
      }
      StepCosts costs = truth;
      Sequences s(std::vector<float>(static_cast<size_t>(n), 0.7f));  // the prior: code
      double tokens = 0, seconds = 0, drafts = 0;
      int64_t since_probe = 0;
      constexpr int kSteps = 2800;
      for (int step = 0; step < kSteps; ++step, ++simulated) {
        DraftPlan plan = s.plan(costs);
        ++since_probe;
        if (plan.rows == n) {
          const double probe = costs.seconds(count, count + 1, 1000) + costs.mtp_draft_seconds();
          if (probe_due(plan.seconds, probe, since_probe)) {
            s.choices[static_cast<size_t>(step % n)] = {DraftSource::kMtp, 1};
            ++plan.rows;
            since_probe = 0;
          }
        }
        int depth = 0;
        for (size_t i = 0; i < s.choices.size(); ++i) {
          const DraftChoice c = s.choices[i];
          int accepted = 0;
          while (accepted < c.count && uniform(gen) < acceptance) ++accepted;
          s.averages[i].observe(c.source, c.count, accepted);
          tokens += 1 + accepted;
          drafts += c.count;
          depth = std::max<int>(depth, c.count);
        }
        const double took = truth.seconds(count, static_cast<double>(plan.rows), 1000) * (0.97 + 0.06 * uniform(gen));
        costs.observe(count, static_cast<double>(plan.rows), 1000, took);
        seconds += took + depth * truth.mtp_draft_seconds();
      }
      const double rate = tokens / seconds;
      EXPECT_GE(rate, 0.97 * plain) << acceptance << " accepted of " << n << " sequences";
      EXPECT_GE(rate, 0.95 * best) << acceptance << " accepted of " << n << " sequences; best with " << best_k
                                   << " drafts, here " << drafts / kSteps / n;
    }
  }
  EXPECT_GE(simulated, 100000);
}

}  // namespace
}  // namespace quire
