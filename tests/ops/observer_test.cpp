// What operators show to an observer: the rows by which each matrix, each expert is multiplied, whatever
// biases, scales and fused tensors there are, and without changing the result.
#include "ops/observer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <random>

#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"

namespace quire {
namespace {

using Rows = std::vector<std::vector<float>>;

struct Recorder final : InputObserver {
  std::map<std::pair<const std::byte*, int64_t>, Rows> seen;  // by the first byte of the weight, and the expert
  void inputs(const OpContext&, std::span<const Weight* const> weights, int64_t expert, const Tensor& x) override {
    for (const Weight* w : weights)
      for (int64_t t = 0; t < x.dim(0); ++t) {
        auto& row = seen[{w->data, expert}].emplace_back();
        for (int64_t c = 0; c < x.dim(1); ++c) row.push_back(load_float(x, t * x.stride[0] + c));
      }
  }
};

constexpr int64_t kTokens = 21, kWidth = 32, kInner = 24, kExperts = 5;
constexpr int kTopK = 2;

struct Data {
  std::mt19937 rng{7};
  std::vector<std::vector<float>> owned;
  float* floats(int64_t n) {
    std::normal_distribution<float> normal(0, 0.4f);
    auto& v = owned.emplace_back(static_cast<size_t>(n));
    for (float& x : v) x = normal(rng);
    return v.data();
  }
  Weight weight(int64_t rows, int64_t cols, int64_t experts = 1) {
    Weight w{DType::kF32, reinterpret_cast<const std::byte*>(floats(rows * cols * experts)), rows, cols, experts};
    w.scale = floats(experts);
    return w;
  }
};

double dot(const Weight& w, int64_t row, int64_t expert, const std::vector<float>& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += static_cast<double>(reinterpret_cast<const float*>(w.row(row, expert))[i]) * static_cast<double>(x[i]);
  return sum * static_cast<double>(w.scale_of(expert));
}

void expect_swiglu(const Weight& gate, const Weight& up, int64_t expert, const Tensor& gate_bias, const Tensor& up_bias,
                   const Rows& in, const Rows& out) {
  ASSERT_EQ(in.size(), out.size());
  const auto bias = [](const Tensor& b, int64_t i) { return b.empty() ? 0.0 : static_cast<double>(b.as<float>()[i]); };
  for (size_t t = 0; t < in.size(); ++t)
    for (int64_t i = 0; i < gate.rows; ++i) {
      const double g = dot(gate, i, expert, in[t]) + bias(gate_bias, i);
      const double want = g / (1 + std::exp(-g)) * (dot(up, i, expert, in[t]) + bias(up_bias, i));
      EXPECT_NEAR(static_cast<double>(out[t][static_cast<size_t>(i)]), want, 0.005 * std::abs(want) + 1e-4)
          << "token " << t << ", column " << i;
    }
}

class Observer : public testing::TestWithParam<Device> {
 protected:
  Observer() : h_(make_tensor(h_bytes_.data(), type(), {kTokens, kWidth})) {
    const float* values = data_.floats(kTokens * kWidth);
    for (int64_t i = 0; i < kTokens * kWidth; ++i) store_float(h_, i, values[i]);
  }
  static DType type() { return GetParam() == Device::kReference ? DType::kF32 : DType::kBF16; }
  OpContext context(InputObserver* observer) {
    return {.pool = pool_, .workspace = workspace_, .machine = {GetParam()}, .observer = observer};
  }
  Rows h_rows() const {
    Rows rows;
    for (int64_t t = 0; t < kTokens; ++t) {
      rows.emplace_back();
      for (int64_t c = 0; c < kWidth; ++c) rows.back().push_back(load_float(h_, t * kWidth + c));
    }
    return rows;
  }
  // Runs op(ctx, x) with and without an observer from the same residual stream.
  template <class Op>
  Recorder observe(Op&& op) {
    const float* start = data_.floats(kTokens * kWidth);
    std::vector<float> plain(start, start + kTokens * kWidth), watched = plain;
    Recorder r;
    op(context(nullptr), make_tensor(plain.data(), {kTokens, kWidth}));
    op(context(&r), make_tensor(watched.data(), {kTokens, kWidth}));
    EXPECT_EQ(plain, watched);
    return r;
  }

  Data data_;
  ThreadPool pool_{2};
  Workspace workspace_;
  alignas(64) std::array<std::byte, kTokens * kWidth * 4> h_bytes_{};
  Tensor h_;
};
INSTANTIATE_TEST_SUITE_P(Devices, Observer, testing::Values(Device::kCpu, Device::kReference),
                         [](const auto& device) { return device.param == Device::kCpu ? "Cpu" : "Reference"; });

TEST_P(Observer, LinearShowsItsRowsForEachPart) {
  const Weight a = data_.weight(kWidth, kWidth), b = data_.weight(kInner, kWidth);
  std::vector<float> y(kTokens * kInner);
  const Recorder r = observe([&](const OpContext& ctx, const Tensor& x) {
    const LinearPart parts[] = {{.w = a, .y = x, .add_to_y = true},
                                {.w = b, .y = make_tensor(y.data(), {kTokens, kInner})}};
    linear(ctx, {.x = h_, .parts = parts});
  });
  EXPECT_EQ(r.seen.size(), 2u);
  EXPECT_EQ(r.seen.at({a.data, 0}), h_rows());
  EXPECT_EQ(r.seen.at({b.data, 0}), h_rows());
}

TEST_P(Observer, MlpShowsTheProductToDown) {
  MlpArgs a{.h = h_,
            .gate = data_.weight(kInner, kWidth),
            .up = data_.weight(kInner, kWidth),
            .down = data_.weight(kWidth, kInner)};
  a.gate_bias = make_tensor(data_.floats(kInner), {kInner});
  a.up_bias = make_tensor(data_.floats(kInner), {kInner});
  const Recorder r = observe([&](const OpContext& ctx, const Tensor& x) {
    a.x = x;
    swiglu_mlp(ctx, a);
  });
  EXPECT_EQ(r.seen.size(), 3u);
  EXPECT_EQ(r.seen.at({a.gate.data, 0}), h_rows());
  EXPECT_EQ(r.seen.at({a.up.data, 0}), h_rows());
  expect_swiglu(a.gate, a.up, 0, a.gate_bias, a.up_bias, h_rows(), r.seen.at({a.down.data, 0}));
}

TEST_P(Observer, MoeShowsEachExpertItsTokens) {
  const Weight fused = data_.weight(2 * kInner, kWidth, kExperts);
  std::vector<int32_t> chosen(kTokens * kTopK);
  MoeArgs a{.h = h_,
            .router = data_.weight(kExperts, kWidth),
            .gate = fused.row_slice(0, kInner),
            .up = fused.row_slice(kInner, kInner),
            .down = data_.weight(kWidth, kInner, kExperts),
            .top_k = kTopK};
  a.router.scale = nullptr;
  a.shared_gate = data_.weight(kInner, kWidth), a.shared_up = data_.weight(kInner, kWidth);
  a.shared_down = data_.weight(kWidth, kInner);
  a.chosen = make_tensor(chosen.data(), {kTokens, kTopK});
  for (const bool wanted : {true, false}) {  // whether the caller wants to know the choice
    if (!wanted) a.chosen = {};
    const Recorder r = observe([&](const OpContext& ctx, const Tensor& x) {
      a.x = x;
      moe(ctx, a);
    });
    const Rows h = h_rows();
    size_t matrices = 4;  // the router and the shared expert
    EXPECT_EQ(r.seen.at({a.router.data, 0}), h);
    EXPECT_EQ(r.seen.at({a.shared_up.data, 0}), h);
    expect_swiglu(a.shared_gate, a.shared_up, 0, {}, {}, h, r.seen.at({a.shared_down.data, 0}));
    for (int32_t e = 0; e < kExperts; ++e) {
      SCOPED_TRACE(e);
      Rows want;
      for (size_t t = 0; t < h.size(); ++t)
        if (chosen[2 * t] == e || chosen[2 * t + 1] == e) want.push_back(h[t]);
      ASSERT_EQ(r.seen.contains({a.gate.data, e}), !want.empty());
      if (want.empty()) continue;
      matrices += 3;
      EXPECT_EQ(r.seen.at({a.gate.data, e}), want);
      EXPECT_EQ(r.seen.at({a.up.data, e}), want);
      expect_swiglu(a.gate, a.up, e, {}, {}, want, r.seen.at({a.down.data, e}));
    }
    EXPECT_EQ(r.seen.size(), matrices);
  }
}

}  // namespace
}  // namespace quire
