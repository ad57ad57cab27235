// The draw: its noise, the distributions that come of it, and how often two rows of similar logits draw the same.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "ops/sampling/gumbel.h"
#include "ops/sampling/noise.h"
#include "sampling/support.h"

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Pearson's statistic. For `dof` degrees of freedom its mean is dof and its deviation sqrt(2 dof).
double chi_square(const std::vector<int>& count, const std::vector<double>& p) {
  const double n = std::accumulate(count.begin(), count.end(), 0.0);
  double x = 0;
  for (size_t i = 0; i < count.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(count[i], 0) << "token " << i << " is impossible";
      continue;
    }
    x += (count[i] - n * p[i]) * (count[i] - n * p[i]) / (n * p[i]);
  }
  return x;
}
double chi_square_limit(int dof) {
  return dof + 5 * std::sqrt(2.0 * dof);
}

// Which sixty-fourth of its distribution a noise falls into.
size_t share_of(float noise) {
  return static_cast<size_t>(std::exp(-std::exp(-static_cast<double>(noise))) * 64);
}

TEST(GumbelNoise, IsTheDoubleLogarithmToAFewUnitsInTheLastPlace) {
  std::mt19937 gen(1);
  std::vector<uint32_t> bits{0, 1, 2, 0x55555554, 0x55555555, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  for (int i = 0; i < 200000; ++i) bits.push_back(static_cast<uint32_t>(gen()) >> gen() % 32);
  for (const uint32_t b : bits) {
    const double v = (b + 0.5) * 0x1p-32, want = -std::log(-std::log1p(-v));
    ASSERT_NEAR(gumbel_of(b), want, 3e-7 * std::max(1.0, std::abs(want))) << "bits " << b;
  }
}

// What is drawn depends on these bits: whoever changes them raises kNumericsVersion.
TEST(GumbelNoise, HasTheseBits) {
  EXPECT_EQ(gumbel_noise(0, 0, 0), 0x1.5984aep-1f);
  EXPECT_EQ(gumbel_noise(0x123456789abcdef0, 1000, 248319), -0x1.06b5aap+0f);
  EXPECT_EQ(gumbel_noise(~uint64_t{0}, int64_t{1} << 31, 7), -0x1.08ff5p-3f);
}

TEST(GumbelNoise, DependsOnEveryBitOfSeedPositionAndId) {
  const float noise = gumbel_noise(5, 6, 7);
  for (int bit = 0; bit < 64; ++bit) EXPECT_NE(gumbel_noise(5 ^ uint64_t{1} << bit, 6, 7), noise) << "seed bit " << bit;
  for (int bit = 0; bit < 62; ++bit) EXPECT_NE(gumbel_noise(5, 6 ^ int64_t{1} << bit, 7), noise) << "position " << bit;
  for (int bit = 0; bit < 30; ++bit) EXPECT_NE(gumbel_noise(5, 6, 7 ^ 1 << bit), noise) << "id bit " << bit;
}

TEST(GumbelNoise, FollowsTheGumbelDistributionOverSeedsPositionsAndIds) {
  std::vector<int> by_seed(64), by_position(64), by_id(64);
  for (int i = 0; i < 64 * 1000; ++i) {
    ++by_seed[share_of(gumbel_noise(static_cast<uint64_t>(i), 7, 11))];
    ++by_position[share_of(gumbel_noise(42, int64_t{i} + (int64_t{1} << 31) - 100, 11))];
    ++by_id[share_of(gumbel_noise(42, 7, i))];
  }
  for (const auto& counts : {by_seed, by_position, by_id})
    EXPECT_LT(chi_square(counts, std::vector<double>(64, 1.0 / 64)), chi_square_limit(63));
}

TEST(GumbelNoise, NeighboursAreIndependent) {
  std::vector<int> ids(32 * 32), positions(32 * 32);
  for (int i = 0; i < 32 * 32 * 50; ++i) {
    const auto bin = [](float x) { return share_of(x) / 2; };
    ++ids[bin(gumbel_noise(3, 9, i)) * 32 + bin(gumbel_noise(3, 9, i + 1))];
    ++positions[bin(gumbel_noise(3, i, 9)) * 32 + bin(gumbel_noise(3, i + 1, 9))];
  }
  const std::vector<double> p(32 * 32, 1.0 / (32 * 32));
  EXPECT_LT(chi_square(ids, p), chi_square_limit(1023));
  EXPECT_LT(chi_square(positions, p), chi_square_limit(1023));
}

TEST(NoiseBits, AreTheSameWithEveryInstructionSet) {
  using namespace sampling;
  std::mt19937_64 gen(3);
  for (const NoiseCpu* cpu : {&kNoiseAvx2, &kNoiseAvx512}) {
    if (cpu == &kNoiseAvx512 && !reaches(cpu_features(), CpuLevel::kAvx512)) continue;
    for (int round = 0; round < 50; ++round) {
      const NoiseStream stream{gen(), static_cast<int64_t>(gen() >> gen() % 63 >> 1)};
      uint32_t groups[kNoiseGroups], words[kNoiseWords];
      for (uint32_t& g : groups) g = static_cast<uint32_t>(gen());
      cpu->fill(stream, groups, words);
      for (uint32_t g = 0; g < kNoiseGroups; ++g)
        for (int32_t w = 0; w < 4; ++w)
          ASSERT_EQ(words[word_index(g, w)],
                    noise_group(stream.seed, stream.position, groups[g])[static_cast<size_t>(w)]);
      // The first block with a word within the limit, whatever else is asked for.
      std::vector<uint32_t> limit(20, 0x01000000);
      limit[gen() % 20] = 0;
      int64_t want = 0;
      for (; want < 20; ++want) {
        bool found = false;
        for (int32_t id = 0; id < 64; ++id)
          found |= limit[static_cast<size_t>(want)] != 0 &&
                   noise_bits(stream.seed, stream.position, static_cast<int32_t>(want) * 64 + id) <= 0x01000000;
        if (found) break;
      }
      ASSERT_EQ(cpu->find(stream, limit.data(), 0, 20), want);
    }
  }
}

class Draws : public testing_sampling::SamplingFixture {
 protected:
  // How often each token is drawn at 100000 positions, of rows of these logits.
  std::vector<int> draw(const std::vector<float>& logits, const SamplingParams& p,
                        const testing_sampling::Seen& seen = {}) {
    constexpr int32_t kRows = 1000;
    const auto vocab = std::ssize(logits);
    std::vector<float> rows;
    for (int32_t r = 0; r < kRows; ++r) rows.insert(rows.end(), logits.begin(), logits.end());
    const testing_sampling::HistoryMemory history(kRows, vocab, vocab);
    testing_sampling::StepArrays step({vocab, 0, kRows, 0, 4}, kRows);
    std::vector<int> count(logits.size());
    for (int32_t r = 0; r < kRows && p.has_penalties(); ++r) set(history.view(), r, seen);
    for (int64_t call = 0; call < 100; ++call) {
      step.list.clear();
      for (int32_t r = 0; r < kRows; ++r)
        EXPECT_TRUE(step.list.add(p, {.position = call * kRows + r, .history = r, .tentative = true}).ok());
      launch(step.args(rows, history.view()));
      for (const int32_t token : step.tokens) ++count.at(static_cast<size_t>(token));
    }
    return count;
  }
  // Draws against the exact distribution, given in parts of any sum.
  void expect(const SamplingParams& p, std::vector<double> exact, const char* what,
              const testing_sampling::Seen& seen = {}) {
    const double sum = std::accumulate(exact.begin(), exact.end(), 0.0);
    const auto possible =
        static_cast<int>(exact.size() - static_cast<size_t>(std::count(exact.begin(), exact.end(), 0.0)));
    for (double& x : exact) x /= sum;
    EXPECT_LT(chi_square(draw(logits_, p, seen), exact), chi_square_limit(possible - 1)) << what;
  }

  // Of these probabilities, a token that is impossible among them.
  const std::vector<double> p_ = {0.05, 0.3, 0.1, 0, 0.2, 0.15, 0.02, 0.08, 0.07, 0.03};
  const std::vector<float> logits_ = [this] {
    std::vector<float> logits;
    for (const double p : p_) logits.push_back(static_cast<float>(std::log(p)));
    return logits;
  }();
};

SamplingParams hot(float temperature, uint64_t seed) {
  SamplingParams p;
  p.temperature = temperature;
  p.seed = seed;
  return p;
}

TEST_P(Draws, FollowTheSoftmaxAtEveryTemperature) {
  for (const float temperature : {0.5f, 1.0f, 3.0f}) {
    std::vector<double> exact;
    for (const double p : p_) exact.push_back(std::pow(p, 1 / static_cast<double>(temperature)));
    expect(hot(temperature, 1), exact, "seed 1");
    expect(hot(temperature, uint64_t{1} << 63), exact, "a seed of 64 bits");
  }
}

TEST_P(Draws, FollowWhatEveryFilterLeaves) {
  SamplingParams p = hot(1.0f, 2);
  p.top_k = 4;
  expect(p, {0, 0.3, 0.1, 0, 0.2, 0.15, 0, 0, 0, 0}, "top-k");
  p = hot(1.0f, 3);
  p.top_p = 0.7f;
  expect(p, {0, 0.3, 0.1, 0, 0.2, 0.15, 0, 0, 0, 0}, "top-p: 0.65 is not enough");
  p = hot(1.0f, 4);
  p.min_p = 0.25f;
  expect(p, {0, 0.3, 0.1, 0, 0.2, 0.15, 0, 0.08, 0, 0}, "min-p: 0.075 and more");
  p = hot(1.0f, 5);
  p.typical_p = 0.5f;
  // Entropy 1.92: surprisals 1.90 (0.15), 1.61 (0.2), 2.30 (0.1), 2.53 (0.08) are the nearest that reach 0.5.
  expect(p, {0, 0, 0.1, 0, 0.2, 0.15, 0, 0.08, 0, 0}, "typical-p");
  p = hot(1.0f, 6);
  p.top_k = 6, p.top_p = 0.85f, p.min_p = 0.45f;
  // Of 0.3, 0.2, 0.15, 0.1, 0.08, 0.07 the first five reach 0.85 of 0.9, and 0.15 and more are 0.45 of 0.3.
  expect(p, {0, 0.3, 0, 0, 0.2, 0.15, 0, 0, 0, 0}, "top-k, top-p and min-p");
}

TEST_P(Draws, FollowBiasesAndPenalties) {
  SamplingParams p = hot(1.0f, 7);
  p.logit_bias = {{0, std::log(4.0f)}, {1, -kInf}};
  std::vector<double> exact = p_;
  exact[0] *= 4, exact[1] = 0;
  SamplingParams biased = p;
  biased.logit_bias.erase(1);
  exact[1] = 0.3;
  expect(biased, exact, "a bias");
  p = hot(1.0f, 8);
  p.presence_penalty = std::log(2.0f), p.frequency_penalty = std::log(1.5f);
  exact = p_;
  exact[1] /= 2 * 1.5 * 1.5, exact[4] /= 2 * 1.5;
  expect(p, exact, "penalties", {{0}, {1, 1, 4}});
}

TEST_P(Draws, TiesGoToTheLowerId) {
  // Beside logits of a billion all noise is rounded away.
  EXPECT_EQ(draw({-kInf, 1e9f, 1.0f, 1e9f}, hot(1.0f, 9))[1], 100000);
  EXPECT_EQ(draw({-1e38f, 3e38f, 3e38f}, hot(0.01f, 9))[1], 100000) << "beyond the range of float32";
  EXPECT_EQ(draw({-kInf, -1e38f, -2e38f}, hot(0.01f, 9))[1], 100000);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Draws, testing::ValuesIn(kSampleOp.kernels.begin(), kSampleOp.kernels.end()),
                         [](const auto& k) { return std::string(k.param.name); });

// How often a drafter whose logits are a little off draws the model's token: with the same noise about as often as any
// two draws of their own distributions can agree (arXiv:2408.07978), with a cumulative sum far less.
TEST(Coupling, SimilarRowsDrawTheSameToken) {
  constexpr int32_t kVocab = 20000, kRows = 150, kPositions = 20;
  struct Case {
    float scale, noise;
    double acceptance;
  };
  std::mt19937 gen(17);
  std::normal_distribution<float> normal;
  ThreadPool pool(1);
  Workspace workspace;
  for (const Case& c :
       {Case{2.0f, 0.3f, 0.83}, {3.0f, 0.3f, 0.86}, {3.0f, 0.7f, 0.67}, {4.0f, 0.3f, 0.85}, {4.0f, 1.2f, 0.52}}) {
    int agree = 0;
    double best = 0;  // 1 - TV
    std::vector<float> logits(kVocab), drafter(kVocab);
    for (int32_t r = 0; r < kRows; ++r) {
      for (size_t i = 0; i < kVocab; ++i) {
        logits[i] = c.scale * normal(gen);
        drafter[i] = logits[i] + c.noise * normal(gen);
      }
      const auto draw = [&](const std::vector<float>& row, int32_t position) {
        testing_sampling::StepArrays step({kVocab, 0, 0, 0, 0}, 1);
        EXPECT_TRUE(step.list.add(hot(1.0f, 1), {.position = r * kPositions + position}).ok());
        sample({pool, workspace}, step.args(row));
        return step.tokens[0];
      };
      for (int32_t position = 0; position < kPositions; ++position)
        agree += draw(logits, position) == draw(drafter, position);
      double sum = 0, other = 0;
      for (size_t i = 0; i < kVocab; ++i) sum += std::exp(logits[i]), other += std::exp(drafter[i]);
      for (size_t i = 0; i < kVocab; ++i)
        best += std::min(std::exp(logits[i]) / sum, std::exp(drafter[i]) / other) / kRows;
    }
    const double rate = static_cast<double>(agree) / (kRows * kPositions);
    EXPECT_GE(rate, c.acceptance - 0.03) << "scale " << c.scale << ", noise " << c.noise << ", 1 - TV " << best;
    EXPECT_LE(rate, best + 0.03) << "no coupling agrees more often";
  }
}

}  // namespace
}  // namespace quire
