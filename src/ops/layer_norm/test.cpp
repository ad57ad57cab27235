#include <cmath>

#include "ops/conformance/gpu.h"
#include "ops/layer_norm/layer_norm.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<LayerNormArgs> kOnGpu{[](Operands& o, LayerNormArgs& a) {
                                        for (Tensor* t : {&a.x, &a.add, &a.weight, &a.bias, &a.h}) o.tensor(*t);
                                      },
                                      layer_norm};

struct Case {
  std::string name;
  int64_t rows = 1, width = 1;
  DType add = DType::kBF16, h = DType::kBF16;
  bool with_add = false;
  float magnitude = 1.0f, mean = 0.0f;  // of the rows' elements
  int64_t gap = 4;                      // between rows of x
};

// How far an element may be off: the mean in float32 is off by `mean_error`, which all differences share, and the
// variance by its own sum's error and by the square of that.
struct RowBound {
  double mean = 0, scale = 0, mean_error = 0, scale_error = 0;

  RowBound(const float* x, int64_t width, float eps) {
    const auto n = static_cast<double>(width);
    double magnitude = 0, squares = 0;
    for (int64_t i = 0; i < width; ++i) {
      mean += static_cast<double>(x[i]) / n;
      magnitude += std::abs(static_cast<double>(x[i])) / n;
    }
    for (int64_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(x[i]) - mean, 2) / n;
    scale = 1.0 / std::sqrt(squares + static_cast<double>(eps));
    // At least 8 x 4 accumulators.
    mean_error = (n / 32.0 + 8.0) * kEpsF32 * magnitude;
    scale_error = (n / 64.0 + 16.0) * kEpsF32 + mean_error * mean_error * scale * scale;
  }
  double of(double x, double weight, double bias, double out, double output_eps) const {
    const double difference = std::abs(x - mean);
    return std::abs(weight) * scale * (mean_error + difference * (scale_error + 4 * kEpsF32)) +
           output_eps * std::abs(out) + 2 * kEpsF32 * std::abs(bias) + 1e-38;
  }
};

void run_case(Suite& s, const Case& c) {
  if (!s.wants_case(c.name)) return;
  Rng rng = s.rng_for_case(c.name);
  Buffer x(DType::kF32, {c.rows, c.width + c.gap}), add(c.add, {c.rows, c.width});
  Buffer weight(DType::kF32, {c.width}), bias(DType::kF32, {c.width});
  x.fill([&] { return c.mean + rng.normal(c.magnitude); });
  add.fill([&] { return rng.normal(c.magnitude); });
  weight.fill([&] { return 1.0f + rng.normal(0.3f); });
  bias.fill([&] { return rng.normal(); });
  // Row 0 is constant: eps keeps it finite.
  for (int64_t i = 0; i < c.width && c.rows > 0; ++i) {
    store_float(x.tensor(), i, c.mean);
    store_float(add.tensor(), i, 0.0f);
  }
  const auto args = [&](const Buffer& rows_x, const Buffer& rows_add, const Buffer& h) -> LayerNormArgs {
    return {rows_x.tensor().cols(0, c.width), c.with_add ? rows_add.tensor() : Tensor{}, weight, bias, 1e-6f, h};
  };

  Buffer want_x = x, want_h(DType::kF32, {c.rows, c.width});
  kLayerNormOp.reference().launch(s.context(Device::kReference), args(want_x, add, want_h));
  const std::vector<float> want = want_h.values(), weights = weight.values(), biases = bias.values();
  std::vector<double> bound;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* row = want_x.tensor().row<float>(t);
    const RowBound b(row, c.width, 1e-6f);
    for (int64_t i = 0; i < c.width; ++i) {
      const auto at = static_cast<size_t>(i);
      bound.push_back(b.of(static_cast<double>(row[i]), static_cast<double>(weights[at]),
                           static_cast<double>(biases[at]), static_cast<double>(want[bound.size()]),
                           c.h == DType::kBF16 ? kEpsBf16 : kEpsF32));
    }
  }

  for (const auto& k : s.kernels(kLayerNormOp.kernels, kOnGpu)) {
    Buffer got_x = x, got_h(c.h, {c.rows, c.width});
    if (!s.wants(k.name, c.name) || !k.fits(s.machine(), args(got_x, add, got_h))) continue;
    k.launch(s.context(Device::kCpu), args(got_x, add, got_h));
    s.expect_close(k.name, c.name, worst_excess(got_h.values(), want, bound));
    s.expect_same_bits(k.name, c.name, got_x, want_x);  // one float32 addition: nothing to choose
    s.expect_guards(k.name, c.name, {&got_x, &got_h, &add, &weight, &bias});
    s.expect_row_invariant(k.name, c.name, c.rows, [&](std::span<const int32_t> rows) {
      Buffer h(c.h, {static_cast<int64_t>(rows.size()), c.width});
      k.launch(s.context(Device::kCpu), args(x.gather(rows), add.gather(rows), h));
      return h;
    });
  }
}

}  // namespace

void layer_norm_conformance(Suite& s) {
  for (const int64_t width : {1, 7, 8, 16, 31, 64, 65, 127, 1024, 1152, 4608})
    for (const int64_t rows : {0, 1, 3, 17})
      for (const bool with_add : {false, true}) {
        const std::string name = fmt::format("T={} D={} add={}", rows, width, with_add ? "bf16" : "none");
        run_case(s, {.name = name, .rows = rows, .width = width, .with_add = with_add});
        run_case(s, {.name = name + " unaligned", .rows = rows, .width = width, .with_add = with_add, .gap = 3});
      }
  run_case(s, {.name = "f32", .rows = 9, .width = 200, .add = DType::kF32, .h = DType::kF32, .with_add = true});
  run_case(s, {.name = "f32 out", .rows = 9, .width = 72, .h = DType::kF32});
  run_case(s, {.name = "large", .rows = 5, .width = 333, .with_add = true, .magnitude = 1e6f});
  run_case(s, {.name = "small", .rows = 5, .width = 333, .with_add = true, .magnitude = 1e-6f});
  run_case(s, {.name = "far from zero", .rows = 5, .width = 333, .h = DType::kF32, .mean = 1000.0f});
  run_case(s, {.name = "many rows", .rows = 150, .width = 96, .with_add = true});
}

}  // namespace quire::conformance
