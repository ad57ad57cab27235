// Sampling against worked examples and distributions; every test runs on every kernel.
#include "ops/sampling/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "sampling/support.h"

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What one row looks back on, and what it may not be.
struct History {
  std::vector<int32_t> prompt, output, suppressed;
};

class Sampling : public testing_sampling::SamplingFixture {
 protected:
  Sampled sample_one(const std::vector<float>& logits, const SamplingParams& p, const History& h = {},
                     int64_t position = 0) {
    const auto vocab = std::ssize(logits);
    const int32_t tracked = p.has_penalties() ? 1 : 0;
    testing_sampling::StepArrays step({vocab, 1, tracked, 8, 8}, 1);
    step.suppressed = h.suppressed;
    const testing_sampling::HistoryMemory history(tracked, vocab, tracked * vocab);
    if (tracked != 0) set(history.view(), 0, {h.prompt, h.output});
    EXPECT_TRUE(step.list.add(p, {.position = position, .batch_slot = 0, .history = tracked - 1}).ok());
    const SampleArgs args = step.args(logits, history.view());
    launch(args);
    EXPECT_EQ(step.sampled[0], step.tokens[0]);
    return read_sampled(args.out, 0);
  }
  int32_t token(const std::vector<float>& logits, const SamplingParams& p, const History& h = {}) {
    return sample_one(logits, p, h).token;
  }
  // How often each token is drawn at positions 0 ... n - 1.
  std::vector<int> draw(const std::vector<float>& logits, const SamplingParams& p, int n, const History& h = {}) {
    std::vector<int> count(logits.size());
    for (int i = 0; i < n; ++i) {
      const int32_t t = sample_one(logits, p, h, i).token;
      if (t < 0) {
        ADD_FAILURE() << "nothing drawn";
        break;
      }
      ++count[static_cast<size_t>(t)];
    }
    return count;
  }
  // The tokens that are ever drawn.
  std::set<int> support(const std::vector<float>& logits, const SamplingParams& p, int n = 2000,
                        const History& h = {}) {
    const std::vector<int> count = draw(logits, p, n, h);
    std::set<int> s;
    for (int i = 0; i < static_cast<int>(count.size()); ++i)
      if (count[static_cast<size_t>(i)] > 0) s.insert(i);
    return s;
  }
};

SamplingParams hot(float temperature = 1.0f) {
  SamplingParams p;
  p.temperature = temperature;
  return p;
}
// Logits whose softmax is this distribution.
std::vector<float> logits_of(std::initializer_list<double> probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

TEST(Philox, MatchesThePublishedVectors) {
  using C = PhiloxCounter;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (C{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (C{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (C{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_P(Sampling, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(token({1, 3, 2}, {}), 1);
  EXPECT_EQ(token({1, 3, 2, 3}, {}), 1);
  EXPECT_EQ(token({-0.0f, 0.0f}, {}), 0);
  EXPECT_EQ(token({-5}, {}), 0);
  EXPECT_EQ(token({-kInf, -3e38f}, {}), 1);
  EXPECT_EQ(token({1, 2, 3}, hot(1e-6f)), 2) << "temperatures below 1e-5 are greedy";
  for (int at = 0; at < 200; ++at) {
    std::vector<float> logits(200, -1.0f);
    logits[static_cast<size_t>(at)] = 1.0f;
    EXPECT_EQ(token(logits, {}), at);
    logits[199] = 1.0f;
    EXPECT_EQ(token(logits, {}), at);
  }
}

TEST_P(Sampling, DamagedLogitsGiveNoToken) {
  for (const SamplingParams& p : {SamplingParams{}, hot()}) {
    for (const size_t at : {0u, 5u, 63u, 64u, 99u}) {
      std::vector<float> logits(100, 0.5f);
      logits[at] = kNan;
      EXPECT_EQ(token(logits, p), -1) << "NaN at " << at;
      logits[at] = kInf;
      EXPECT_EQ(token(logits, p), -1) << "infinity at " << at;
    }
    EXPECT_EQ(token({-kInf, -kInf}, p), -1);
    EXPECT_EQ(token({kNan, 1.0f}, p, {{}, {}, {0}}), -1) << "suppressing a NaN does not heal the row";
    EXPECT_EQ(token({1, 2}, p, {{}, {}, {0, 1}}), -1) << "everything suppressed";
  }
}

TEST_P(Sampling, OnlyOnePossibleToken) {
  std::vector<float> logits(1000, -kInf);
  logits[777] = -1e30f;
  for (SamplingParams p : {SamplingParams{}, hot(), hot(100.0f)}) {
    EXPECT_EQ(token(logits, p), 777);
    p.top_k = 5, p.top_p = 0.1f, p.min_p = 1.0f, p.typical_p = 0.1f, p.logprobs = 5;
    const Sampled s = sample_one(logits, p);
    EXPECT_EQ(s.token, 777);
    EXPECT_EQ(s.logprob, 0.0f);
    ASSERT_EQ(s.top.size(), 1u) << "tokens of probability 0 are not listed";
    EXPECT_EQ(s.top[0].token, 777);
  }
}

TEST_P(Sampling, ExtremeTemperatures) {
  EXPECT_EQ(support({1, 2, 3}, hot(1e-4f), 200), (std::set{2}));
  EXPECT_EQ(support({-1e30f, 2, 3e30f}, hot(1.0f), 200), (std::set{2}));
  EXPECT_EQ(support({1, 2, 3}, hot(1e30f), 200), (std::set{0, 1, 2}));
  EXPECT_EQ(support({1, 2, 3, -kInf}, hot(std::numeric_limits<float>::max()), 200), (std::set{0, 1, 2}));
}

TEST_P(Sampling, LogitBias) {
  SamplingParams p;
  p.logit_bias = {{0, 5.0f}, {2, -100.0f}};
  EXPECT_EQ(token({1, 2, 50}, p), 0);
  p.logit_bias = {{1, 100.0f}};
  EXPECT_EQ(token({-kInf, -kInf, 50}, p), 2) << "no bias makes an impossible token possible";
}

TEST_P(Sampling, SuppressedTokensAreNeverDrawn) {
  SamplingParams p;
  p.logit_bias = {{2, 100.0f}};
  EXPECT_EQ(token({1, 2, 3}, p, {{}, {}, {2}}), 1) << "whatever their bias";
  EXPECT_EQ(support({1, 1, 1}, hot(), 500, {{}, {}, {1}}), (std::set{0, 2}));
}

TEST_P(Sampling, RepetitionPenaltySeesPromptAndOutput) {
  SamplingParams p;
  p.repetition_penalty = 2.0f;
  EXPECT_EQ(token({3, 2, 1}, p, {{0}, {}, {}}), 1) << "3 / 2 < 2";
  EXPECT_EQ(token({3, 2, 1}, p, {{}, {0}, {}}), 1);
  EXPECT_EQ(token({5, 2, 1}, p, {{0, 0, 0}, {0, 0}, {}}), 0) << "once, however often it occurs: 5 / 2 > 2";
  EXPECT_EQ(token({-1, -1.5f, -3}, p, {{0}, {}, {}}), 1) << "negative logits are multiplied";
  p.repetition_penalty = 0.5f;
  EXPECT_EQ(token({3, 2, 1}, p, {{1}, {}, {}}), 1) << "below 1 it encourages: 2 / 0.5 > 3";
}

TEST_P(Sampling, PresenceAndFrequencySeeTheOutputOnly) {
  SamplingParams p;
  p.presence_penalty = 1.5f;
  EXPECT_EQ(token({3, 2, 1}, p, {{0, 0}, {}, {}}), 0) << "the prompt does not count";
  EXPECT_EQ(token({3, 2, 1}, p, {{}, {0}, {}}), 1);
  EXPECT_EQ(token({4, 2, 1}, p, {{}, {0, 0, 0}, {}}), 0) << "once";
  p = {};
  p.frequency_penalty = 0.6f;
  EXPECT_EQ(token({3, 2, 1}, p, {{0, 0, 0, 0}, {0}, {}}), 0) << "3 - 0.6 > 2";
  EXPECT_EQ(token({3, 2, 1}, p, {{}, {0, 1, 0}, {}}), 0) << "3 - 1.2 > 2 - 0.6";
  EXPECT_EQ(token({3, 2, 1}, p, {{}, {0, 0}, {}}), 1) << "3 - 1.2 < 2";
  p.repetition_penalty = 2.0f;
  EXPECT_EQ(token({8, 2.9f, 1}, p, {{}, {0, 0}, {}}), 1) << "divided first, then reduced: 8 / 2 - 1.2";
  EXPECT_EQ(token({8, 2.7f, 1}, p, {{}, {0, 0}, {}}), 0);
}

TEST_P(Sampling, PenaltiesDoNotCarryOverToOtherRows) {
  SamplingParams p;
  p.presence_penalty = 2.0f;
  std::vector<float> logits{3, 2, 1, 3, 2, 1, 3, 2, 1};
  const testing_sampling::HistoryMemory history(3, 3, 3);
  set(history.view(), 2, {{}, {0}});
  set(history.view(), 0, {{}, {1}});
  testing_sampling::StepArrays step({3, 3, 3, 0, 0}, 3);
  for (int32_t r = 0; r < 3; ++r) ASSERT_TRUE(step.list.add(p, {.batch_slot = r, .history = 2 - r}).ok());
  launch(step.args(logits, history.view()));
  EXPECT_THAT(step.tokens, testing::ElementsAre(1, 0, 0));
}

TEST_P(Sampling, TopKKeepsAllThatEqualTheKth) {
  SamplingParams p = hot();
  p.top_k = 2;
  EXPECT_EQ(support({1, 3, 2, 0}, p), (std::set{1, 2}));
  EXPECT_EQ(support({2, 3, 2, 2, 0}, p), (std::set{0, 1, 2, 3}));
  p.top_k = 1;
  EXPECT_EQ(support({1, 3, 2, 0}, p), (std::set{1}));
  p.top_k = 3;
  EXPECT_EQ(support({0, -kInf, -kInf, -kInf}, p), (std::set{0})) << "fewer possible tokens than k";
  p.top_k = 4;
  EXPECT_EQ(support({0, 0, 0, 0}, p).size(), 4u) << "a k of the vocabulary's size is off";
}

TEST_P(Sampling, TopKOfEveryK) {
  // Logits 0, -0.01, ... in shuffled order: at this temperature every one of the k is likely enough to show.
  std::vector<float> logits(256);
  for (int i = 0; i < 256; ++i) logits[static_cast<size_t>(i * 77 % 256)] = -0.01f * static_cast<float>(i);
  SamplingParams p = hot(10.0f);
  for (const int k : {1, 2, 3, 4, 5, 6, 7, 64, 100, 200, 255}) {
    p.top_k = k;
    std::set<int> want;
    for (int i = 0; i < k; ++i) want.insert(i * 77 % 256);
    EXPECT_EQ(support(logits, p, k * 16), want) << "k = " << k;
  }
}

TEST_P(Sampling, TopPKeepsTheShortestPrefixThatReachesIt) {
  SamplingParams p = hot();
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  p.top_p = 0.39f;
  EXPECT_EQ(support(logits, p), (std::set{1}));
  p.top_p = 0.41f;
  EXPECT_EQ(support(logits, p), (std::set{1, 3}));
  p.top_p = 0.71f;
  EXPECT_EQ(support(logits, p), (std::set{1, 2, 3}));
  p.top_p = 0.91f;
  EXPECT_EQ(support(logits, p), (std::set{0, 1, 2, 3}));
  p.top_p = 0.0f;
  EXPECT_EQ(support(logits, p), (std::set{1})) << "at least one";
  p.top_p = 0.5f;
  EXPECT_EQ(support({0, 0, 0, 0}, p), (std::set{0, 1})) << "equals go to the lower ids; two reach 0.5";
  p.temperature = 10.0f;
  p.top_p = 0.41f;
  EXPECT_EQ(support(logits, p), (std::set{1, 3})) << "the temperature flattens first: 0.27, 0.26, ...";
}

TEST_P(Sampling, TopPSeesWhatTopKLeft) {
  SamplingParams p = hot();
  p.top_k = 2;
  p.top_p = 0.56f;  // 0.4 / 0.7 = 0.571 of what top-k leaves, 0.4 of everything
  EXPECT_EQ(support(logits_of({0.1, 0.4, 0.2, 0.3}), p), (std::set{1}));
}

TEST_P(Sampling, MinPIsRelativeToTheLikeliest) {
  SamplingParams p = hot();
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  p.min_p = 0.3f;  // of 0.4: 0.12
  EXPECT_EQ(support(logits, p), (std::set{1, 2, 3}));
  p.min_p = 0.6f;
  EXPECT_EQ(support(logits, p), (std::set{1, 3}));
  p.min_p = 1.0f;
  EXPECT_EQ(support(logits, p), (std::set{1}));
  EXPECT_EQ(support({1, 1, 0}, p), (std::set{0, 1}));
}

TEST_P(Sampling, TypicalPrefersTokensNearTheEntropy) {
  // Entropy 1.17 nats; surprisals 0.69, 1.20, 2.30, 2.30: the second token is the typical one, not the first.
  const std::vector<float> logits = logits_of({0.5, 0.3, 0.1, 0.1});
  SamplingParams p = hot();
  p.typical_p = 0.2f;
  EXPECT_EQ(support(logits, p), (std::set{1}));
  p.typical_p = 0.6f;
  EXPECT_EQ(support(logits, p), (std::set{0, 1}));
  p.typical_p = 0.85f;
  EXPECT_EQ(support(logits, p), (std::set{0, 1, 2})) << "ties go to the lower id";
  p.typical_p = 0.0f;
  EXPECT_EQ(support(logits, p), (std::set{1})) << "at least one";
  p.typical_p = 0.6f;
  p.top_p = 0.5f;  // 0.5 of 0.8 is 0.625
  EXPECT_EQ(support(logits, p), (std::set{0})) << "top-p sees what typical-p left";
  p.typical_p = 0.2f;
  p.top_p = 1.0f;
  p.min_p = 0.9f;
  EXPECT_EQ(support(logits, p), (std::set{1})) << "min-p is relative to the likeliest of those left";
}

TEST_P(Sampling, SeedAndPositionDecide) {
  const std::vector<float> logits(5000, 0.0f);
  SamplingParams a = hot(), b = hot();
  b.seed = 1;
  EXPECT_EQ(sample_one(logits, a, {}, 9).token, sample_one(logits, a, {}, 9).token);
  EXPECT_NE(sample_one(logits, a, {}, 9).token, sample_one(logits, a, {}, 10).token);
  EXPECT_NE(sample_one(logits, a, {}, 9).token, sample_one(logits, b, {}, 9).token);
}

TEST_P(Sampling, LogprobsAreThoseOfTheRawLogits) {
  SamplingParams p = hot(0.3f);
  p.logprobs = 2;
  p.logit_bias = {{0, 100.0f}};
  p.top_k = 1;
  const Sampled s = sample_one(logits_of({0.1, 0.4, 0.2, 0.3}), p, {{1}, {1}, {3}});
  EXPECT_EQ(s.token, 0);
  EXPECT_NEAR(s.logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(s.top.size(), 2u);
  EXPECT_EQ(s.top[0].token, 1);
  EXPECT_NEAR(s.top[0].logprob, std::log(0.4), 1e-6);
  EXPECT_EQ(s.top[1].token, 3);
  EXPECT_NEAR(s.top[1].logprob, std::log(0.3), 1e-6);
  p.logprobs = 0;
  EXPECT_TRUE(sample_one(logits_of({0.5, 0.5}), p).top.empty());
  EXPECT_NEAR(sample_one(logits_of({0.5, 0.5}), p).logprob, std::log(0.5), 1e-6);
  p.logprobs = 3;
  const Sampled ties = sample_one({1, 2, 1, 2}, p);
  ASSERT_EQ(ties.top.size(), 3u);
  EXPECT_THAT((std::vector{ties.top[0].token, ties.top[1].token, ties.top[2].token}), testing::ElementsAre(1, 3, 0));
}

TEST_P(Sampling, LogprobsKeepTheirPrecisionOverALargeVocabulary) {
  std::mt19937 gen(5);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(250001);
  double sum = 0;
  for (float& x : logits) sum += std::exp(static_cast<double>(x = 100.0f + normal(gen)) - 100.0);
  SamplingParams p;
  p.logprobs = 1;
  const Sampled s = sample_one(logits, p);
  EXPECT_NEAR(s.logprob, logits[static_cast<size_t>(s.token)] - 100.0 - std::log(sum), 2e-6);
}

TEST_P(Sampling, LeavesTheLogitsAloneAndTakesNoRows) {
  const std::vector<float> logits{1, 2, 3, 4}, before = logits;
  SamplingParams p = hot();
  p.logit_bias = {{1, 3.0f}};
  sample_one(logits, p);
  EXPECT_EQ(logits, before);
  const testing_sampling::StepArrays nothing({4, 0, 0, 0, 0}, 0);
  launch(nothing.args({}));
}

TEST_P(Sampling, ABiasOfMinusInfinityForbidsATokenToOneRow) {
  SamplingParams p;
  p.logit_bias = {{2, -kInf}, {1, 1.0f}};
  EXPECT_EQ(token({1, 2, 50}, p), 1);
  p.logit_bias = {{0, -kInf}, {1, -kInf}, {2, -kInf}};
  EXPECT_EQ(token({1, 2, 50}, p), -1) << "nothing is left";
}

TEST_P(Sampling, ReportsNoMoreLikeliestTokensThanThereIsRoomFor) {
  const std::vector<float> logits{1, 4, 3, 2};
  testing_sampling::StepArrays step({4, 0, 0, 2, 0}, 1);
  ASSERT_TRUE(step.list.add({.logprobs = 2}, {}).ok());
  step.row[0].logprobs = 4;  // more than the list would have let through
  launch(step.args(logits));
  EXPECT_EQ(step.top_count[0], 2);
  EXPECT_THAT(step.top_ids, testing::ElementsAre(1, 2));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Sampling, testing::ValuesIn(kSampleOp.kernels.begin(), kSampleOp.kernels.end()),
                         [](const auto& k) { return std::string(k.param.name); });

struct BadParams {
  std::function<void(SamplingParams&)> change;
  const char* says;
};

TEST(Validate, NamesTheValueAndWhatIsAllowed) {
  const BadParams bad[] = {
      {[](auto& p) { p.temperature = -0.1f; }, "temperature is -0.1: must be between 0 and 100"},
      {[](auto& p) { p.temperature = kNan; }, "temperature is nan"},
      {[](auto& p) { p.temperature = kInf; }, "temperature is inf"},
      {[](auto& p) { p.top_k = -1; }, "top_k is -1: must be at least 0"},
      {[](auto& p) { p.top_p = 1.1f; }, "top_p is 1.1: must be between 0 and 1"},
      {[](auto& p) { p.top_p = kNan; }, "top_p is nan"},
      {[](auto& p) { p.min_p = -0.5f; }, "min_p is -0.5: must be between 0 and 1"},
      {[](auto& p) { p.typical_p = 2.0f; }, "typical_p is 2: must be between 0 and 1"},
      {[](auto& p) { p.repetition_penalty = 0.0f; }, "repetition_penalty is 0: must be between 0.01"},
      {[](auto& p) { p.presence_penalty = 2.5f; }, "presence_penalty is 2.5: must be between -2 and 2"},
      {[](auto& p) { p.frequency_penalty = -3.0f; }, "frequency_penalty is -3: must be between -2"},
      {[](auto& p) { p.logit_bias[100] = 1.0f; }, "token 100, but the vocabulary has ids 0 to 99"},
      {[](auto& p) { p.logit_bias[-1] = 1.0f; }, "logit_bias names token -1"},
      {[](auto& p) { p.logit_bias[5] = 101.0f; }, "token 5 is 101: must be between -100 and 100"},
      {[](auto& p) { p.logit_bias[5] = kNan; }, "logit_bias of token 5 is nan"},
      {[](auto& p) { p.logprobs = -2; }, "logprobs is -2"},
      {[](auto& p) { p.logprobs = 101; }, "logprobs is 101: must be between 0 and the vocabulary's"},
  };
  for (const BadParams& b : bad) {
    SamplingParams p;
    b.change(p);
    const Status s = p.validate(100);
    ASSERT_FALSE(s.ok()) << b.says;
    EXPECT_EQ(s.error().fault, Fault::kRequest);
    EXPECT_THAT(s.error().message, testing::HasSubstr(b.says));
  }
}

TEST(Validate, AcceptsTheDefaultsAndTheEdges) {
  SamplingParams p;
  EXPECT_TRUE(p.validate(100).ok());
  p.temperature = 2.0f, p.top_k = 1000, p.top_p = 0.0f, p.min_p = 1.0f, p.typical_p = 0.0f, p.logprobs = 100;
  p.presence_penalty = -2.0f, p.frequency_penalty = 2.0f, p.repetition_penalty = 100.0f;
  p.logit_bias = {{0, 100.0f}, {99, -100.0f}};
  EXPECT_TRUE(p.validate(100).ok());
}

}  // namespace
}  // namespace quire
