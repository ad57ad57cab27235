// The float32 core decodes every block format to the numbers of the reference decoder.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ops/conformance/conformance.h"
#include "ops/linear/linear.h"
#include "quant/format.h"

namespace quire {
namespace {

// Blocks of any bytes that decode to finite numbers.
std::vector<std::byte> random_rows(DType type, int64_t elems, std::mt19937_64& gen) {
  std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(type, elems)));
  const auto block = static_cast<size_t>(dtype_info(type).block_bytes);
  std::vector<float> values(static_cast<size_t>(dtype_info(type).block_elems));
  const auto finite = [](float v) { return std::isfinite(v); };
  for (size_t at = 0; at < bytes.size();) {
    for (size_t i = 0; i < block; ++i) bytes[at + i] = static_cast<std::byte>(gen());
    quant::decode_row(type, bytes.data() + at, std::ssize(values), values.data());
    if (std::all_of(values.begin(), values.end(), finite)) at += block;
  }
  return bytes;
}

// A token that is 1 in one column and 0 in all others gets that column's weights.
TEST(FloatWeights, AreThoseOfTheReference) {
  ThreadPool pool(1);
  Workspace workspace;
  std::mt19937_64 gen(1);
  const auto* const kernel = std::find_if(kLinearOp.kernels.data(), kLinearOp.kernels.data() + kLinearOp.kernels.size(),
                                          [](const auto& k) { return k.name == kBaseLevel; });
  for (const DType type : conformance::weight_types()) {
    if (dtype_info(type).block_elems == 1) continue;
    constexpr int64_t kRows = 35, kCols = 512;
    const std::vector<std::byte> bytes = random_rows(type, kRows * kCols, gen);
    std::vector<float> x(kCols * kCols), y(kCols * kRows), want(kRows * kCols);
    for (size_t i = 0; i < kCols; ++i) x[i * kCols + i] = 1.0f;
    quant::decode_row(type, bytes.data(), kRows * kCols, want.data());
    const LinearArgs args{make_tensor(x.data(), {kCols, kCols}),
                          {{{type, bytes.data(), kRows, kCols}, {}, make_tensor(y.data(), {kCols, kRows}), false}}};
    const OpContext ctx{pool, workspace};
    kernel->launch(ctx, args);
    for (size_t r = 0; r < kRows; ++r)
      for (size_t k = 0; k < kCols; ++k)
        ASSERT_EQ(y[k * kRows + r], want[r * kCols + k]) << dtype_name(type) << " row " << r << " column " << k;
  }
}

}  // namespace
}  // namespace quire
