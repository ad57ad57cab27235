// The search for scales: never worse than the plain rules and clearly better on data as weights are, as good
// as trying everything where that can be tried, and safe on extreme inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/float.h"
#include "quant/format.h"
#include "quant/fp4.h"

namespace quire::quant {
namespace {

constexpr uint32_t kSeed = 20260801;
constexpr DType kSearched[] = {DType::kQ4_0, DType::kQ4_1,  DType::kQ5_0,  DType::kQ5_1, DType::kQ4_K,  DType::kQ5_K,
                               DType::kQ6_K, DType::kMXFP4, DType::kNVFP4, DType::kQ3_K, DType::kIQ4_NL};
constexpr int kElems = 4096;

using Row = std::vector<float>;

Row encode_and_decode(DType type, const Row& x, EncodeOptions o) {
  const auto n = static_cast<int64_t>(x.size());
  if (type == DType::kNVFP4) o.tensor_scale = nvfp4_tensor_scale(x.data(), n).value();
  std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(type, n)));
  encode_row(type, x.data(), n, o, bytes.data());
  Row y(x.size());
  decode_row(type, bytes.data(), n, y.data());
  for (float& v : y) v *= o.tensor_scale;
  return y;
}

double error_of(DType type, const Row& x, Search search, std::span<const float> importance) {
  const Row y = encode_and_decode(type, x, {.search = search, .importance = importance});
  return squared_error(x.data(), y.data(), std::ssize(x), importance);
}

Row gaussian(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  Row x(kElems);
  for (float& v : x) v = normal(random);
  return x;
}
// Student's t with 3 degrees of freedom: a few values are ten times the spread.
Row heavy_tailed(uint32_t seed) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> t(3);
  Row x(kElems);
  for (float& v : x) v = 0.02f * t(random);
  return x;
}
// Mean squares of activations: log-normal, over about three orders of magnitude.
Row importances(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Row w(kElems);
  for (float& v : w) v = std::exp(1.5f * normal(random));
  return w;
}

struct Gain {
  DType type;
  double plain, weighted;  // error of the search over that of the plain rule, at most
};

TEST(Search, BeatsThePlainRuleOnWeights) {
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  constexpr Gain kGains[] = {{DType::kQ4_0, 0.95, 0.80}, {DType::kQ4_1, 0.82, 0.60},  {DType::kQ5_0, 0.97, 0.80},
                             {DType::kQ5_1, 0.82, 0.60}, {DType::kQ4_K, 0.84, 0.65},  {DType::kQ5_K, 0.88, 0.65},
                             {DType::kQ6_K, 0.87, 0.70}, {DType::kMXFP4, 0.97, 0.95}, {DType::kNVFP4, 0.84, 0.72},
                             {DType::kQ3_K, 0.93, 0.72}, {DType::kIQ4_NL, 0.95, 0.80}};
  const Row w = importances(kSeed + 2);
  for (const Gain& g : kGains)
    for (const Row& x : {gaussian(kSeed), heavy_tailed(kSeed + 1)}) {
      SCOPED_TRACE(dtype_name(g.type));
      EXPECT_LT(error_of(g.type, x, Search::kBest, {}), g.plain * error_of(g.type, x, Search::kNearest, {}));
      EXPECT_LT(error_of(g.type, x, Search::kBest, w), g.weighted * error_of(g.type, x, Search::kNearest, w));
      // Knowing the importances helps, measured with them.
      const Row blind = encode_and_decode(g.type, x, {.search = Search::kBest});
      EXPECT_LT(error_of(g.type, x, Search::kBest, w), squared_error(x.data(), blind.data(), kElems, w));
    }
}

// Every scale that a half can hold, for some blocks: the grid and its refinement lose at most a few percent.
TEST(Search, Q4_0IsCloseToTryingEveryScale) {
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  const Row all = gaussian(kSeed), w = importances(kSeed);
  double best_sum = 0, got_sum = 0;
  for (int block = 0; block < 8; ++block) {
    const Row x(all.begin() + block * 32, all.begin() + block * 32 + 32);
    const std::span<const float> importance = std::span(w).subspan(static_cast<size_t>(block) * 32, 32);
    double best = 1e30;
    for (int bits = 0; bits < 0x10000; ++bits) {
      const float d = to_float(half{static_cast<uint16_t>(bits)});
      if (!(std::fabs(d) > 1e-4f && std::fabs(d) < 0.05f)) continue;
      double error = 0;
      for (size_t i = 0; i < 32; ++i) {
        const float e = x[i] - d * std::clamp(std::nearbyint(x[i] / d), -8.0f, 7.0f);
        error += double{importance[i]} * e * e;
      }
      best = std::min(best, error);
    }
    best_sum += best;
    got_sum += error_of(DType::kQ4_0, x, Search::kBest, importance);
  }
  EXPECT_LE(got_sum, 1.03 * best_sum);
}

// All 127 codes of a block scale, with and without importances: the search finds the best, always.
TEST(Search, Nvfp4FindsTheBestOfAllScaleCodes) {
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  const Row w = importances(kSeed);
  for (const Row& x : {gaussian(kSeed), heavy_tailed(kSeed)})
    for (const bool weighted : {false, true}) {
      const float s = nvfp4_tensor_scale(x.data(), kElems).value();
      const std::span<const float> importance = weighted ? std::span<const float>(w) : std::span<const float>{};
      const Row y = encode_and_decode(DType::kNVFP4, x, {.importance = importance});
      for (int sub = 0; sub < kElems; sub += 16) {
        const auto weights = weighted ? importance.subspan(static_cast<size_t>(sub), 16) : importance;
        double best = 1e30;
        for (int code = 0; code <= 0x7e; ++code) {
          const float scale = decode_ue4m3(static_cast<uint8_t>(code)) * s;
          float z[16];
          for (int i = 0; i < 16; ++i)
            z[i] = scale > 0 ? decode_e2m1(encode_e2m1(x[static_cast<size_t>(sub + i)] / scale)) * scale : 0;
          best = std::min(best, squared_error(&x[static_cast<size_t>(sub)], z, 16, weights));
        }
        const double got = squared_error(&x[static_cast<size_t>(sub)], &y[static_cast<size_t>(sub)], 16, weights);
        ASSERT_LE(got, best * (1 + 1e-4) + 1e-14) << "sub-block " << sub;
      }
    }
}

// sin(0.1 i), for which the encoders of other engines leave these errors.
TEST(Search, IsNoWorseThanTheWorkedExamples) {
  Row x(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(0.1f * static_cast<float>(i));
  EXPECT_LE(std::sqrt(error_of(DType::kQ4_K, x, Search::kBest, {}) / 256), 0.020101);
  EXPECT_LE(std::sqrt(error_of(DType::kQ6_K, x, Search::kBest, {}) / 256), 0.007804);
}

// Scales that a half cannot hold saturate; nothing becomes infinite or NaN, and what fits stays accurate.
TEST(Search, ExtremeInputsStayFinite) {
  const auto row = [](auto value) {
    Row x(256);
    for (size_t i = 0; i < x.size(); ++i) x[i] = value(i);
    return x;
  };
  const auto wave = [](size_t i) { return std::sin(static_cast<float>(i)); };
  const std::vector<std::pair<const char*, Row>> inputs = {
      {"one huge value", row([](size_t i) { return i == 77 ? 3e38f : 1.0f; })},
      {"all huge", row([&](size_t i) { return 3e38f * wave(i); })},
      {"denormals", row([&](size_t i) { return 1e-40f * wave(i); })},
      {"smallest denormals", row([](size_t i) { return i % 2 == 0 ? 1e-45f : -1e-45f; })},
      {"scales below a half", row([&](size_t i) { return 1e-9f * wave(i); })},
      {"a huge and a tiny half", row([&](size_t i) { return (i < 128 ? 1e30f : 1e-30f) * wave(i); })},
      {"a constant", row([](size_t) { return -0.7f; })},
      {"a large offset", row([&](size_t i) { return 1000 + 1e-3f * wave(i); })},
      {"one value of many zeros", row([](size_t i) { return i == 200 ? -5.0f : 0.0f; })},
  };
  for (int id = 0; id < 64; ++id) {
    const auto info = find_dtype(static_cast<uint32_t>(id));
    if (!info || !can_encode(info->type) || info->type == DType::kF16 || info->type == DType::kBF16) continue;
    for (const auto& [name, x] : inputs)
      for (const Search search : {Search::kNearest, Search::kBest}) {
        const Row y = encode_and_decode(info->type, x, {.search = search});
        for (size_t i = 0; i < x.size(); ++i)
          ASSERT_TRUE(std::isfinite(y[i])) << info->name << ", " << name << ", element " << i << ": " << y[i];
      }
  }
  // One value of many zeros is all but representable (MXFP4 has 4 and 6 for 5, IQ4_NL 1 and 127 for 0 and 127), and so
  // is a constant.
  for (const DType type : kSearched) {
    const Row one = encode_and_decode(type, inputs[8].second, {});
    const double uneven = type == DType::kIQ4_NL ? 0.05 : 5e-3;
    EXPECT_NEAR(one[200], -5, type == DType::kMXFP4 ? 1 : uneven) << dtype_name(type);
    EXPECT_NEAR(one[199], 0, uneven) << dtype_name(type);
    const double constant = std::sqrt(error_of(type, inputs[6].second, Search::kBest, {}) / 256);
    EXPECT_LT(constant, type == DType::kMXFP4 ? 0.06 : 0.014) << dtype_name(type);
  }
}

TEST(Search, SurvivesNanInfinityAndOddImportances) {
  const Row x = gaussian(kSeed);
  for (int id = 0; id < 64; ++id) {
    const auto info = find_dtype(static_cast<uint32_t>(id));
    if (!info || !can_encode(info->type)) continue;
    for (const Search search : {Search::kNearest, Search::kBest})
      for (const float bad : {NAN, INFINITY, -INFINITY, 3e38f, 1e-40f}) {
        Row v(x.begin(), x.begin() + 256);
        v[3] = bad;
        std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(info->type, 256)));
        encode_row(info->type, v.data(), 256, {.search = search}, bytes.data());
      }
  }
  for (const DType type : kSearched)
    for (const float odd : {0.0f, 1e-45f, 3e38f, INFINITY, NAN, -1.0f}) {
      const Row everywhere(kElems, odd);
      Row here(kElems, 1.0f);
      here[100] = odd;
      for (const Row& w : {everywhere, here}) {
        const Row y = encode_and_decode(type, x, {.importance = w});
        EXPECT_LT(squared_error(x.data(), y.data(), kElems, {}),
                  (type == DType::kQ3_K ? 0.04 : 0.02) * squared_error(x.data(), Row(kElems).data(), kElems, {}))
            << dtype_name(type) << " with importance " << odd;
      }
    }
}

TEST(Search, RepeatsItselfAndDoesNotLookBeyondTheBlock) {
  const Row x = heavy_tailed(kSeed), w = importances(kSeed);
  for (const DType type : kSearched) {
    const int64_t block = dtype_info(type).block_elems;
    std::vector<std::byte> whole(static_cast<size_t>(dtype_bytes(type, kElems))), parts(whole.size());
    const EncodeOptions o{.importance = w, .tensor_scale = 1e-4f};
    encode_row(type, x.data(), kElems, o, whole.data());
    for (int64_t at = 0; at < kElems; at += block)
      encode_row(type, x.data() + at, block,
                 {.importance = o.importance.subspan(static_cast<size_t>(at), static_cast<size_t>(block)),
                  .tensor_scale = o.tensor_scale},
                 parts.data() + dtype_bytes(type, at));
    EXPECT_EQ(whole, parts) << dtype_name(type);
  }
}

}  // namespace
}  // namespace quire::quant
