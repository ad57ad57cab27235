// How tokens become FP4: by the definition, with every code tried.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/float.h"
#include "ops/gemm/fp4_tokens.h"
#include "quant/fp4.h"

namespace quire::gemm {
namespace {

constexpr int64_t kCols = 192;

std::vector<float> rounded(DType weights, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  round_to_fp4(weights, x.data(), static_cast<int64_t>(x.size()), y.data());
  return y;
}

// The nearest of `count` ascending numbers; of two that are as near that with the even number.
template <class Number>
int nearest(double x, int count, Number&& number) {
  int best = 0;
  for (int i = 1; i < count; ++i) {
    const double old = std::abs(number(best) - x), other = std::abs(number(i) - x);
    if (other < old || (other == old && i % 2 == 0)) best = i;
  }
  return best;
}

double largest(const float* x, int64_t count) {
  double most = 0x1p-100;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(static_cast<double>(x[i])));
  return most;
}

double scale_by_definition(DType weights, const float* row, int64_t first) {
  const double block = largest(row + first, fp4_block(weights)), all = largest(row, kCols);
  if (weights == DType::kMXFP4) {
    const double power = std::exp2(std::floor(std::log2(block)));
    return power / (block > 1.75 * power ? 2 : 4);
  }
  const double power = std::exp2(std::floor(std::log2(all)) - 10);
  const int code =
      nearest(block / 6 / power, 0x7f, [](int c) { return double{quant::decode_ue4m3(static_cast<uint8_t>(c))}; });
  return static_cast<double>(quant::decode_ue4m3(static_cast<uint8_t>(code))) * power;
}

TEST(Fp4Tokens, AreTheNearestCodesUnderTheScalesOfTheDefinition) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (const DType weights : {DType::kNVFP4, DType::kMXFP4})
    for (int turn = 0; turn < 300; ++turn) {
      std::vector<float> x(kCols);
      for (size_t i = 0; i < x.size(); ++i)  // blocks of very different sizes
        x[i] = to_float(to_bf16(std::ldexp(normal(rng), static_cast<int>(i / 16 * 7 % 11) * -2 + turn % 60 - 30)));
      const std::vector<float> y = rounded(weights, x);
      for (int64_t c = 0; c < kCols; ++c) {
        const double scale = scale_by_definition(weights, x.data(), c / fp4_block(weights) * fp4_block(weights));
        const double magnitude = std::abs(static_cast<double>(x[static_cast<size_t>(c)]));
        const auto number = [&](int code) { return static_cast<double>(quant::kE2m1[code]) * scale; };
        const double want = scale == 0 ? 0 : number(nearest(magnitude, 8, number));
        const double got = std::abs(static_cast<double>(y[static_cast<size_t>(c)]));
        // As near, where the inverse of the scale is rounded.
        EXPECT_NEAR(std::abs(got - magnitude), std::abs(want - magnitude), 0x1p-22 * magnitude) << c;
        EXPECT_TRUE(got == 0 || std::signbit(y[static_cast<size_t>(c)]) == std::signbit(x[static_cast<size_t>(c)]));
      }
    }
}

TEST(Fp4Tokens, TiesGoToEvenCodesAndTheLargestStays) {
  std::vector<float> x(kCols, 0.0f);
  const float ties[] = {6.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, -0.75f};
  const float want[] = {6.0f, 0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f, -1.0f};
  std::copy(std::begin(ties), std::end(ties), x.begin());
  for (const DType weights : {DType::kNVFP4, DType::kMXFP4}) {
    const std::vector<float> y = rounded(weights, x);
    for (size_t i = 0; i < std::size(want); ++i) EXPECT_EQ(y[i], want[i]) << x[i];
  }
}

TEST(Fp4Tokens, NothingButARowsOwnNoNumbersSpoilIt) {
  for (const DType weights : {DType::kNVFP4, DType::kMXFP4}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> x(kCols, 1.0f);
      x[100] = bad;
      for (const float v : rounded(weights, x)) EXPECT_TRUE(std::isnan(v));
    }
    for (const float tiny : {0.0f, 0x1p-140f, 0x1p-120f})
      for (const float v : rounded(weights, std::vector<float>(kCols, tiny))) EXPECT_EQ(v, 0.0f);
    for (const float v : rounded(weights, std::vector<float>(kCols, 0x1.fp126f))) EXPECT_NEAR(v, 0x1.fp126f, 0x1p124f);
  }
}

}  // namespace
}  // namespace quire::gemm
