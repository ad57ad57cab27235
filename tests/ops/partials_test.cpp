// Products shared out between devices: each has some columns of the last matrix and writes what they give, and
// reduce_partials adds that up to what one device computes with all of them.
#include <gtest/gtest.h>

#include <random>

#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

constexpr int64_t kTokens = 5, kWidth = 32, kInner = 64, kDevices = 2, kExperts = 4;
constexpr int kTop = 2;

struct Partials : testing::Test {
  ThreadPool pool{2};
  Workspace workspace;
  OpContext ctx{pool, workspace};
  std::mt19937 rng{1};
  std::vector<bf16> h = random(kTokens * kWidth);
  std::vector<float> x = std::vector<float>(kTokens * kWidth, 0.25f), whole = x;
  std::vector<float> partials = std::vector<float>(kDevices * kTokens * kWidth, NAN);

  std::vector<bf16> random(int64_t n) {
    std::normal_distribution<float> normal(0.0f, 0.2f);
    std::vector<bf16> v(static_cast<size_t>(n));
    for (bf16& e : v) e = to_bf16(normal(rng));
    return v;
  }
  static Weight weight(const std::vector<bf16>& v, int64_t rows, int64_t cols, int64_t experts = 1) {
    return {DType::kBF16, reinterpret_cast<const std::byte*>(v.data()), rows, cols, experts};
  }
  // Columns [begin, begin + count) of every row of `cols`.
  static std::vector<bf16> columns(const std::vector<bf16>& v, int64_t cols, int64_t begin, int64_t count) {
    std::vector<bf16> part;
    for (auto row = v.begin(); row != v.end(); row += cols) part.insert(part.end(), row + begin, row + begin + count);
    return part;
  }
  Tensor partial(int64_t device) { return make_tensor(partials.data() + device * kTokens * kWidth, {kTokens, kWidth}); }
  Tensor residual(std::vector<float>& v) { return make_tensor(v.data(), {kTokens, kWidth}); }
  void expect_sum_is_whole() {
    reduce_partials(ctx, {make_tensor(partials.data(), {kDevices, kTokens, kWidth}), residual(x)});
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], whole[i], 1e-5) << i;
    EXPECT_NE(x[0], 0.25f);
  }
};

TEST_F(Partials, LinearByColumns) {
  const std::vector<bf16> mid = random(kTokens * kInner), w = random(kWidth * kInner);
  linear(ctx, {make_tensor(mid.data(), {kTokens, kInner}), {{weight(w, kWidth, kInner), {}, residual(whole), true}}});
  constexpr int64_t kShare = kInner / kDevices;
  for (int64_t d = 0; d < kDevices; ++d) {
    const std::vector<bf16> part = columns(w, kInner, d * kShare, kShare);
    linear(ctx, {make_tensor(mid.data(), {kTokens, kInner}).cols(d * kShare, kShare),
                 {{weight(part, kWidth, kShare), {}, partial(d), false}}});
  }
  expect_sum_is_whole();
}

TEST_F(Partials, MlpByInnerRows) {
  const std::vector<bf16> gate = random(kInner * kWidth), up = random(kInner * kWidth), down = random(kWidth * kInner);
  MlpArgs a;
  a.h = make_tensor(h.data(), {kTokens, kWidth});
  a.gate = weight(gate, kInner, kWidth), a.up = weight(up, kInner, kWidth);
  a.down = weight(down, kWidth, kInner);
  a.x = residual(whole);
  swiglu_mlp(ctx, a);
  constexpr int64_t kShare = kInner / kDevices;
  for (int64_t d = 0; d < kDevices; ++d) {
    const std::vector<bf16> part = columns(down, kInner, d * kShare, kShare);
    MlpArgs mine = a;
    mine.gate = a.gate.row_slice(d * kShare, kShare), mine.up = a.up.row_slice(d * kShare, kShare);
    mine.down = weight(part, kWidth, kShare);
    mine.x = partial(d);
    mine.add_to_x = false;
    swiglu_mlp(ctx, mine);
  }
  expect_sum_is_whole();
}

TEST_F(Partials, MoeByInnerRowsWithTheSharedExpertOnOneDevice) {
  const std::vector<bf16> router = random(kExperts * kWidth), gate = random(kExperts * kInner * kWidth),
                          up = random(kExperts * kInner * kWidth), down = random(kExperts * kWidth * kInner);
  const std::vector<bf16> shared_gate = random(kInner * kWidth), shared_down = random(kWidth * kInner);
  MoeArgs a;
  a.h = make_tensor(h.data(), {kTokens, kWidth});
  a.router = weight(router, kExperts, kWidth);
  a.gate = weight(gate, kInner, kWidth, kExperts), a.up = weight(up, kInner, kWidth, kExperts);
  a.down = weight(down, kWidth, kInner, kExperts);
  a.shared_gate = a.shared_up = weight(shared_gate, kInner, kWidth);
  a.shared_down = weight(shared_down, kWidth, kInner);
  a.top_k = kTop;
  a.x = residual(whole);
  moe(ctx, a);
  constexpr int64_t kShare = kInner / kDevices;
  for (int64_t d = 0; d < kDevices; ++d) {
    const std::vector<bf16> part = columns(down, kInner, d * kShare, kShare);
    MoeArgs mine = a;
    mine.gate = a.gate.row_slice(d * kShare, kShare), mine.up = a.up.row_slice(d * kShare, kShare);
    mine.down = weight(part, kWidth, kShare, kExperts);
    if (d > 0) mine.shared_gate = mine.shared_up = mine.shared_down = {};
    mine.x = partial(d);
    mine.add_to_x = false;
    moe(ctx, mine);
  }
  expect_sum_is_whole();
}

}  // namespace
}  // namespace quire
