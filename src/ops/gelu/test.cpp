#include <cmath>

#include "ops/conformance/gpu.h"
#include "ops/gelu/gelu.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<GeluArgs> kOnGpu{[](Operands& o, GeluArgs& a) {
                                   for (Tensor* t : {&a.x, &a.y}) o.tensor(*t);
                                 },
                                 gelu};

struct Case {
  int64_t rows = 1, width = 1;
  GeluForm form = GeluForm::kTanh;
  DType x = DType::kBF16, y = DType::kBF16;
  bool in_place = false;
  int64_t gap = 3;  // between rows

  std::string name() const {
    return fmt::format("{} T={} D={} x={} y={}{}", form == GeluForm::kErf ? "erf" : "tanh", rows, width, dtype_name(x),
                       dtype_name(y), in_place ? " in place" : "") +
           (gap == 3 ? "" : fmt::format(" gap={}", gap));
  }
};

// Far out on both sides (one side vanishes, the other is x itself), around zero, and the rest.
float element(Rng& rng) {
  switch (rng.integer(0, 9)) {
    case 0:
      return rng.uniform(-40.0f, 40.0f);
    case 1:
      return rng.normal(1e4f);
    case 2:
      return rng.normal(1e-6f);
    case 3:
      return rng.integer(0, 1) == 0 ? 0.0f : -0.0f;
    default:
      return rng.normal(2.0f);
  }
}

void run_case(Suite& s, const Case& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  Buffer x(c.x, {c.rows, c.width + c.gap});
  x.fill([&] { return element(rng); });
  std::vector<double> want, bound;
  for (const float v : values(x.tensor().cols(0, c.width))) {
    const auto g = static_cast<double>(v);
    const double phi = c.form == GeluForm::kErf
                           ? 0.5 * std::erfc(-g / std::sqrt(2.0))
                           : 1.0 / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
    want.push_back(g * phi);
    bound.push_back(std::abs(want.back()) * (0x1p-13 + (c.y == DType::kBF16 ? kEpsBf16 : kEpsF32)) + 1e-30);
  }
  for (const auto& k : s.kernels(kGeluOp.kernels, kOnGpu)) {
    const auto run = [&](Buffer& in, Buffer& out) {
      Tensor y = c.in_place ? in.tensor() : out.tensor();
      k.launch(s.context(Device::kCpu), {in.tensor().cols(0, c.width), y.cols(0, c.width), c.form});
      if (c.in_place) out = in;
    };
    Buffer in = x, y(c.y, {c.rows, c.width + c.gap});
    if (!s.wants(k.name, name) || !k.fits(s.machine(), {in, y, c.form})) continue;
    run(in, y);
    s.expect_close(k.name, name, worst_excess(values(y.tensor().cols(0, c.width)), want, bound));
    s.expect_guards(k.name, name, {&in, &y});
    s.expect_row_invariant(k.name, name, c.rows, [&](std::span<const int32_t> rows) {
      Buffer part = x.gather(rows), out(c.y, {static_cast<int64_t>(rows.size()), c.width + c.gap});
      run(part, out);
      return out;
    });
  }
}

// A NaN stays one, and its neighbours are what they are.
void nan_case(Suite& s, GeluForm form) {
  const std::string name = fmt::format("NaN {}", form == GeluForm::kErf ? "erf" : "tanh");
  for (const auto& k : s.kernels(kGeluOp.kernels, kOnGpu)) {
    if (!s.wants(k.name, name)) continue;
    Buffer x(DType::kF32, {1, 19}), y(DType::kF32, {1, 19});
    x.fill([] { return 1.0f; });
    for (const int64_t i : {0, 9, 18}) store_float(x, i, NAN);
    k.launch(s.context(Device::kCpu), {x, y, form});
    bool right = true;
    for (int64_t i = 0; i < 19; ++i) right &= std::isnan(load_float(y, i)) == (i % 9 == 0);
    s.expect(k.name, name, right, "NaN where it was, and nowhere else");
  }
}

}  // namespace

void gelu_conformance(Suite& s) {
  for (const GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
    for (const int64_t width : {1, 7, 8, 16, 31, 65, 208, 4304})
      for (const int64_t rows : {0, 1, 5, 33}) run_case(s, {.rows = rows, .width = width, .form = form});
    for (const DType x : {DType::kF32, DType::kBF16})
      for (const DType y : {DType::kF32, DType::kBF16})
        for (const int64_t gap : {3, 8, 11})  // 328 + 8: rows of whole vectors, also of a GPU's
          run_case(s, {.rows = 7, .width = 336 - gap, .form = form, .x = x, .y = y, .gap = gap});
    run_case(s, {.rows = 20, .width = 112, .form = form, .in_place = true});
    run_case(s, {.rows = 20, .width = 113, .form = form, .x = DType::kF32, .y = DType::kF32, .in_place = true});
    nan_case(s, form);
  }
}

}  // namespace quire::conformance
