// Calls with weights of several types on a CPU without AVX-512: each has the core of its type, as if it came alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/conformance/conformance.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"

namespace quire {
namespace {

using conformance::Buffer;
using conformance::RandomWeight;

class MixedTypes : public testing::Test {
 protected:
  RandomWeight weight(DType type, int64_t rows, int64_t cols, int64_t experts = 1) {
    return conformance::random_weight(rng_, type, rows, cols, experts, 0.1f);
  }
  conformance::Rng rng_{1};
  ThreadPool pool_{2};
  Workspace workspace_;
  const OpContext ctx_{.pool = pool_, .workspace = workspace_, .machine = {Device::kCpu, {.base = true}}};
};

TEST_F(MixedTypes, PartsOfLinear) {
  constexpr int64_t kTokens = 5, kRows = 40, kCols = 256;
  Buffer x(DType::kBF16, {kTokens, kCols});
  x.fill([&] { return rng_.normal(); });
  for (const DType type : conformance::weight_types())
    for (const DType other : {DType::kBF16, DType::kF32}) {
      const RandomWeight w = weight(type, kRows, kCols), v = weight(other, kRows, kCols);
      Buffer beside(DType::kF32, {kTokens, kRows}), alone = beside, ignored = beside;
      linear(ctx_, {x, {{w.weight, {}, beside}, {v.weight, {}, ignored}}});
      linear(ctx_, {x, {{w.weight, {}, alone}}});
      EXPECT_EQ(conformance::first_difference(beside, alone), -1)
          << dtype_name(type) << " beside " << dtype_name(other);
    }
}

// A shared expert whose last matrix is zeros adds nothing: what is left is what the routed experts give alone.
TEST_F(MixedTypes, ExpertsOfMoe) {
  constexpr int64_t kTokens = 5, kWidth = 256, kInner = 256, kExperts = 6;
  Buffer h(DType::kBF16, {kTokens, kWidth}), x(DType::kF32, {kTokens, kWidth});
  h.fill([&] { return rng_.normal(); });
  x.fill([&] { return rng_.normal(); });
  const RandomWeight router = weight(DType::kF32, kExperts, kWidth);
  for (const DType type : conformance::weight_types()) {
    if (dtype_info(type).block_elems == 1) continue;
    const RandomWeight gate = weight(type, kInner, kWidth, kExperts), up = weight(type, kInner, kWidth, kExperts),
                       down = weight(type, kWidth, kInner, kExperts);
    const RandomWeight shared = weight(DType::kBF16, kInner, kWidth);
    RandomWeight zeros = weight(DType::kBF16, kWidth, kInner);
    std::fill(zeros.bytes.begin(), zeros.bytes.end(), std::byte{});
    Buffer beside = x, alone = x;
    MoeArgs a;
    a.h = h;
    a.router = router.weight, a.gate = gate.weight, a.up = up.weight, a.down = down.weight;
    a.top_k = 2;
    a.x = alone;
    moe(ctx_, a);
    a.shared_gate = a.shared_up = shared.weight, a.shared_down = zeros.weight;
    a.x = beside;
    moe(ctx_, a);
    EXPECT_EQ(conformance::first_difference(beside, alone), -1) << dtype_name(type);
  }
}

}  // namespace
}  // namespace quire
