// KL divergence against a direct computation in long double, and the statistics over positions.
#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "eval/scorer.h"

namespace quire::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Divergence diverge(const std::vector<float>& p, const std::vector<float>& q, TokenId token = 0) {
  std::vector<double> scratch;
  return quire::diverge(p, q, token, scratch);
}

std::vector<long double> softmax(const std::vector<float>& logits) {
  long double sum = 0;
  std::vector<long double> p;
  for (float l : logits) {
    p.push_back(std::exp(static_cast<long double>(l)));
    sum += p.back();
  }
  for (long double& x : p) x /= sum;
  return p;
}

// By the definition, without any of the care that large logits need.
long double direct_kl(const std::vector<float>& a, const std::vector<float>& b) {
  const std::vector<long double> p = softmax(a), q = softmax(b);
  long double kl = 0;
  for (size_t i = 0; i < p.size(); ++i)
    if (p[i] > 0) kl += p[i] * (std::log(p[i]) - std::log(q[i]));
  return kl;
}

std::vector<float> random_logits(std::mt19937& random, size_t n, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

TEST(Divergence, AgreesWithTheDefinition) {
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (const size_t vocab : {1u, 2u, 7u, 320u, 5000u})
    for (const float spread : {0.01f, 1.0f, 8.0f})
      for (const float change : {1e-4f, 0.1f, 3.0f}) {
        const std::vector<float> p = random_logits(random, vocab, spread);
        std::vector<float> q = random_logits(random, vocab, change);
        for (size_t i = 0; i < vocab; ++i) q[i] += p[i];
        const Divergence d = diverge(p, q, static_cast<TokenId>(vocab / 2));
        const auto want = static_cast<double>(direct_kl(p, q));
        EXPECT_NEAR(d.kl, want, 1e-14 + 1e-12 * want) << vocab << " " << spread << " " << change;
        EXPECT_EQ(d.logprob_reference, log_probability(p, static_cast<TokenId>(vocab / 2)));
        EXPECT_EQ(d.logprob_model, log_probability(q, static_cast<TokenId>(vocab / 2)));
        EXPECT_GE(d.kl, 0.0);
      }
}

TEST(Divergence, KnownValues) {
  const float half = std::log(0.5f), quarter = std::log(0.25f);
  const Divergence d = diverge({half, quarter, quarter}, {quarter, half, quarter}, 1);
  EXPECT_NEAR(d.kl, 0.25 * std::log(2.0), 1e-7);
  EXPECT_NEAR(d.logprob_reference, std::log(0.25), 1e-7);
  EXPECT_NEAR(d.logprob_model, std::log(0.5), 1e-7);
  EXPECT_NEAR(d.delta_p(), 0.25, 1e-7);
  EXPECT_EQ(d.top_reference, 0);
  EXPECT_EQ(d.top_model, 1);
}

TEST(Divergence, EqualLogitsGiveExactlyZero) {
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    const std::vector<float> p = random_logits(random, 997, 5.0f);
    const Divergence d = diverge(p, p, i);
    EXPECT_EQ(d.kl, 0.0);
    EXPECT_EQ(d.delta_p(), 0.0);
    EXPECT_EQ(d.top_reference, d.top_model);
  }
}

TEST(Divergence, LargeLogitsDoNotOverflow) {
  const Divergence d = diverge({30000.0f, 29999.0f}, {-30000.0f, -30001.0f});
  EXPECT_NEAR(d.kl, 0.0, 1e-12) << "a constant makes no difference";
  EXPECT_EQ(diverge({1e30f, 0.0f}, {0.0f, 0.0f}).kl, std::log(2.0)) << "all on one token";
}

TEST(Divergence, ExcludedTokens) {
  EXPECT_NEAR(diverge({0.0f, -kInf}, {0.0f, 0.0f}).kl, std::log(2.0), 1e-15) << "P excludes: nothing to lose";
  EXPECT_EQ(diverge({0.0f, -kInf}, {1.0f, -kInf}).kl, 0.0) << "both exclude";
  EXPECT_EQ(diverge({0.0f, 0.0f}, {0.0f, -kInf}).kl, std::numeric_limits<double>::infinity())
      << "Q excludes what P does not";
  const Divergence d = diverge({0.0f, -kInf}, {0.0f, -kInf}, 1);
  EXPECT_EQ(d.logprob_model, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(d.delta_p(), 0.0);
}

TEST(Divergence, WhatIsNoDistributionIsSaid) {
  const std::vector<float> good{1.0f, 2.0f, 3.0f};
  for (const std::vector<float>& bad :
       {std::vector<float>{kNan, 2.0f, 3.0f}, {1.0f, 2.0f, kNan}, {1.0f, kInf, 0.0f}, {-kInf, -kInf, -kInf}}) {
    EXPECT_TRUE(std::isnan(diverge(bad, good).logprob_reference));
    EXPECT_FALSE(std::isnan(diverge(bad, good).logprob_model));
    EXPECT_TRUE(std::isnan(diverge(good, bad).logprob_model));
    EXPECT_FALSE(std::isnan(diverge(good, bad).logprob_reference));
  }
}

TEST(Likeliest, LowestIdFirstAmongEquals) {
  const std::vector<TokenProbability> top = likeliest(std::vector<float>{0.0f, 1.0f, 0.0f, 1.0f, -kInf}, 3);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 3);
  EXPECT_EQ(top[2].token, 0);
  EXPECT_NEAR(top[0].probability, std::exp(1.0) / (2 + 2 * std::exp(1.0)), 1e-12);
  EXPECT_EQ(likeliest(std::vector<float>{0.0f, 1.0f}, 9).size(), 2u);
  EXPECT_TRUE(likeliest(std::vector<float>{0.0f, 1.0f}, 0).empty());
}

TEST(Quantile, AsNumpyComputesIt) {
  const std::vector<float> four{1.0f, 2.0f, 4.0f, 8.0f};
  const std::tuple<double, double> cases[] = {{0.0, 1.0}, {0.25, 1.75}, {0.5, 3.0},
                                              {0.9, 6.8}, {1.0, 8.0},   {1.0 / 3, 2.0}};
  for (const auto& [q, want] : cases) EXPECT_NEAR(quantile(four, q), want, 1e-12) << q;
  EXPECT_EQ(quantile(std::vector<float>{5.0f}, 0.99), 5.0);
  EXPECT_EQ(quantile(std::vector<float>{0.0f, kInf, kInf}, 0.9), double{kInf});
  EXPECT_EQ(quantile(std::vector<float>{0.0f, kInf}, 0.0), 0.0);
}

Divergence position(double kl, double p, double q, bool same_top) {
  return {.kl = kl,
          .logprob_reference = std::log(p),
          .logprob_model = std::log(q),
          .top_reference = 0,
          .top_model = same_top ? 0 : 1};
}

TEST(DivergenceStats, Summary) {
  DivergenceStats stats(2);
  stats.add(position(0.5, 0.5, 0.25, true));
  stats.add(position(0.0, 0.5, 0.5, true));
  stats.add(position(1.0, 0.25, 0.75, false));
  stats.add(position(0.5, 1.0, 1.0, true));
  const DivergenceSummary s = stats.summary();
  EXPECT_EQ(s.positions, 4);
  EXPECT_DOUBLE_EQ(s.nll_reference, 4 * std::log(2.0));
  EXPECT_DOUBLE_EQ(s.perplexity_reference, 2.0);
  EXPECT_NEAR(s.perplexity_model, std::pow(0.25 * 0.5 * 0.75, -0.25), 1e-12);
  EXPECT_DOUBLE_EQ(s.mean, 0.5);
  EXPECT_DOUBLE_EQ(s.median, 0.5);
  EXPECT_NEAR(s.p90, 0.85, 1e-7);
  EXPECT_DOUBLE_EQ(s.max, 1.0);
  EXPECT_NEAR(s.standard_error, std::sqrt(0.5 / 3 / 4), 1e-12);
  EXPECT_DOUBLE_EQ(s.top1_agreement, 0.75);
  EXPECT_NEAR(s.rms_delta_p, std::sqrt((0.0625 + 0.25) / 4), 1e-12);
}

TEST(DivergenceStats, OnePosition) {
  DivergenceStats stats(1);
  stats.add(position(0.25, 0.5, 0.5, true));
  EXPECT_EQ(stats.summary().standard_error, 0.0);
  EXPECT_EQ(stats.summary().p99, 0.25);
}

TEST(DivergenceStats, ByPositionCoversEveryPositionOnce) {
  DivergenceStats stats(5);
  for (int window = 0; window < 3; ++window)
    for (int i = 0; i < 5; ++i) stats.add(position(i + 10 * window, 0.5, 0.5, true));
  const std::vector<PositionBin> bins = stats.by_position(3);
  ASSERT_EQ(bins.size(), 3u);
  EXPECT_EQ(bins[0].first, 0);
  EXPECT_EQ(bins[0].last, 1);
  EXPECT_DOUBLE_EQ(bins[0].mean, 10.5);
  EXPECT_DOUBLE_EQ(bins[0].p90, 20.5);
  EXPECT_EQ(bins[2].first, 4);
  EXPECT_EQ(bins[2].last, 4);
  EXPECT_DOUBLE_EQ(bins[2].mean, 14.0);
  EXPECT_EQ(stats.by_position(100).size(), 5u);
}

}  // namespace
}  // namespace quire::test
