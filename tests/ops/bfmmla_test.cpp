// The arithmetic of the core for BF16 weights on ARM (ops/gemm/core_bfmmla.cpp), by hand: what the architecture says of
// BFMMLA, in the order that the core has. So CPUs with it agree, and how many tokens there are changes nothing.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "core/float.h"
#include "ops/linear/linear.h"

namespace quire {
namespace {

// The exact sum of a and b where that is a float, else the one of its neighbours whose last bit is set; what is below
// 2^-126 is zero.
float sum_to_odd(double a, double b) {
  const double sum = a + b, other = sum - a, rest = (a - (sum - other)) + (b - other);  // sum + rest is exact
  float nearest = static_cast<float>(sum);
  if (std::abs(nearest) < 0x1p-126f) return std::copysign(0.0f, nearest);
  const double off = (sum - static_cast<double>(nearest)) + rest;
  if (off == 0.0) return nearest;
  if ((off < 0) == (nearest > 0)) nearest = std::nextafter(nearest, 0.0f);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) | 1u);
}

double times(bf16 a, bf16 b) {
  const double product = static_cast<double>(to_float(a)) * static_cast<double>(to_float(b));
  return std::abs(product) < 0x1p-126 ? std::copysign(0.0, product) : product;
}

float product(const bf16* w, const bf16* x, int64_t cols) {
  float sum = 0.0f;
  const auto at = [&](const bf16* row, int64_t c) { return c < cols ? row[c] : bf16{}; };
  for (int64_t segment = 0; segment < cols; segment += 128) {
    float chain = 0.0f;
    for (int64_t c = segment; c < std::min(segment + 128, cols); c += 2)
      chain = sum_to_odd(static_cast<double>(chain),
                         static_cast<double>(sum_to_odd(times(at(w, c), at(x, c)), times(at(w, c + 1), at(x, c + 1)))));
    sum += chain;
  }
  return sum;
}

const Kernel<LinearArgs>* bfmmla() {
  for (const Kernel<LinearArgs>& k : kLinearOp.kernels)
    if (k.name == "bfmmla") return &k;
  return nullptr;
}

TEST(Bfmmla, GivesTheBitsOfTheArithmeticByHand) {
  const Kernel<LinearArgs>* const kernel = bfmmla();
  if (kernel == nullptr || !reaches(Machine{}, kernel->needs)) GTEST_SKIP() << "this CPU has no BFMMLA";
  ThreadPool pool(2);
  Workspace workspace;
  const OpContext ctx{pool, workspace};
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  // Few tokens and many, whole steps of columns and parts of them, rows that fill groups and that do not.
  for (const int64_t tokens : {1, 2, 3, 5, 8, 9, 70})
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{48, 32}, {19, 416}, {33, 1088}, {16, 75}}) {
      std::vector<bf16> w(static_cast<size_t>(rows * cols)), x(static_cast<size_t>(tokens * cols));
      // Of very different size, so that sums lose places in every way.
      for (std::vector<bf16>* values : {&w, &x})
        for (bf16& v : *values) v = to_bf16(std::ldexp(normal(random), static_cast<int>(random() % 24) - 12));
      w[static_cast<size_t>(cols)] = to_bf16(0x1p-100f);  // whose product with the least of x is below all numbers
      x[0] = to_bf16(0x1.8p-40f);
      std::vector<float> y(static_cast<size_t>(tokens * rows), NAN);
      const Weight weight{DType::kBF16, reinterpret_cast<const std::byte*>(w.data()), rows, cols};
      const LinearPart part{weight, {}, make_tensor(y.data(), {tokens, rows}), false};
      const LinearArgs args{make_tensor(x.data(), {tokens, cols}), {part}, 0};
      ASSERT_TRUE(kernel->fits(ctx.machine, args));
      kernel->launch(ctx, args);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t r = 0; r < rows; ++r)
          ASSERT_EQ(y[static_cast<size_t>(t * rows + r)],
                    product(&w[static_cast<size_t>(r * cols)], &x[static_cast<size_t>(t * cols)], cols))
              << "row " << r << " of " << rows << " x " << cols << ", token " << t << " of " << tokens;
    }
}

TEST(Bfmmla, TheSumByHandRoundsToOdd) {
  EXPECT_EQ(sum_to_odd(1.0, 0x1p-30), std::nextafter(1.0f, 2.0f));
  EXPECT_EQ(sum_to_odd(1.0, -0x1p-30), std::nextafter(1.0f, 0.0f));
  EXPECT_EQ(sum_to_odd(-1.0, 0x1p-200), -std::nextafter(1.0f, 0.0f));
  EXPECT_EQ(sum_to_odd(1.0 + 0x1p-23, 0x1p-30), 1.0f + 0x1p-23f);
  EXPECT_EQ(sum_to_odd(1.5, 0.25), 1.75f);
  EXPECT_EQ(sum_to_odd(0x1p-126, -0x1p-127), 0.0f);
}

}  // namespace
}  // namespace quire
