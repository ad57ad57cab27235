// How many drafts a step has: near the best number, and none where they cost more than they bring.
#include "engine/draft_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace quire {
namespace {

// Steps of a machine: a step's time by sequences and drafts of each.
using Cost = double (*)(int32_t sequences, double drafts);

// Experts are read for every row until all are: drafts cost much for a few sequences, little for one.
double experts(int32_t sequences, double drafts) {
  const double rows = sequences * (1 + drafts);
  return 1.0 + 0.06 * (std::min(rows, 64.0) - 1) / 4 + rows * 0.012 + drafts * 0.05;
}
double dense(int32_t sequences, double drafts) {
  return 1.0 + 0.004 * sequences * (1 + drafts) + drafts * 0.03;
}
// Every row costs as much as the first: drafts bring nothing.
double rows_cost_all(int32_t sequences, double drafts) {
  return sequences * (1 + drafts);
}

// Tokens a second with so many drafts always, or (-1) as the plan chooses.
double rate(Cost cost, int32_t sequences, double acceptance, int32_t drafts, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<AcceptanceAverages> averages(static_cast<size_t>(sequences));
  DraftPlan plan;
  double tokens = 0, seconds = 0;
  constexpr int64_t kRows = 4096;
  for (int step = 0; step < 2000; ++step) {
    std::vector<DraftOffer> offers;
    for (const AcceptanceAverages& a : averages) offers.push_back({.most = kMostDrafts, .acceptance = &a});
    const int32_t each = drafts >= 0 ? drafts : plan.choose(offers, kRows);
    for (AcceptanceAverages& a : averages) {
      int32_t accepted = 0;
      while (accepted < each && uniform(rng) < acceptance) ++accepted;
      a.observe(each, accepted);
      tokens += 1 + accepted;
    }
    const double took = cost(sequences, each) * (1 + 0.05 * (uniform(rng) - 0.5));
    plan.observe(sequences, each, took);
    seconds += took;
  }
  return tokens / seconds;
}

TEST(DraftPlan, IsNearTheBestNumberAndNeverMuchBelowNone) {
  for (const Cost cost : {experts, dense, rows_cost_all})
    for (const int32_t sequences : {1, 8, 32, 256})
      for (const double acceptance : {0.0, 0.3, 0.6, 0.8, 0.95}) {
        double best = 0;
        for (int32_t drafts = 0; drafts <= kMostDrafts; ++drafts)
          best = std::max(best, rate(cost, sequences, acceptance, drafts, 1));
        const double none = rate(cost, sequences, acceptance, 0, 1), chosen = rate(cost, sequences, acceptance, -1, 1);
        EXPECT_GT(chosen, 0.97 * none) << sequences << " sequences, acceptance " << acceptance;
        EXPECT_GT(chosen, 0.93 * best) << sequences << " sequences, acceptance " << acceptance;
      }
}

TEST(DraftPlan, StaysWithinTheRowsThatThereAre) {
  AcceptanceAverages sure;
  for (int i = 0; i < 200; ++i) sure.observe(kMostDrafts, kMostDrafts);
  DraftPlan plan;
  for (int i = 0; i < 10; ++i) plan.observe(8, 0, 1.0);
  const std::vector<DraftOffer> offers(8, DraftOffer{.most = kMostDrafts, .acceptance = &sure});
  for (const int64_t rows : {0, 7, 8, 20, 56, 1000})
    for (int turn = 0; turn < 200; ++turn) EXPECT_LE(8 * plan.choose(offers, rows), rows);
  EXPECT_FALSE(plan.wants_drafts(offers, 7));
  EXPECT_TRUE(plan.wants_drafts(offers, 56));
  EXPECT_EQ(plan.choose({}, 100), 0);
}

TEST(DraftPlan, StepsWithoutDraftsComeFirst) {
  const AcceptanceAverages prior;
  const DraftOffer one{.most = kMostDrafts, .acceptance = &prior};
  DraftPlan plan;
  EXPECT_FALSE(plan.wants_drafts({&one, 1}, 100));
  for (int i = 0; i < 3; ++i) plan.observe(1, 0, 1.0);
  EXPECT_TRUE(plan.wants_drafts({&one, 1}, 100));
}

TEST(AcceptanceAverages, CountsADepthWhereAllBeforeItWereRight) {
  AcceptanceAverages a;
  for (int i = 0; i < 300; ++i) a.observe(3, 1);  // the first right, the second wrong, the third unknown
  EXPECT_GT(a.at(0), 0.99f);
  EXPECT_LT(a.at(1), 0.01f);
  EXPECT_EQ(a.at(2), AcceptanceAverages::kPrior);
}

}  // namespace
}  // namespace quire
