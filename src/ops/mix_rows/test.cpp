#include <cmath>

#include "ops/conformance/gpu.h"
#include "ops/mix_rows/mix_rows.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<MixRowsArgs> kOnGpu{[](Operands& o, MixRowsArgs& a) {
                                      for (Tensor* t : {&a.rows, &a.weights, &a.table, &a.x}) o.tensor(*t);
                                    },
                                    mix_rows};

struct Case {
  int64_t rows = 1, count = 1, table = 1, width = 1;
  bool add = false;
  float magnitude = 1.0f;
  int64_t gap = 5;  // between rows of x

  std::string name() const {
    return fmt::format("T={} K={} N={} D={}{} of {}", rows, count, table, width, add ? " add" : "", magnitude) +
           (gap == 5 ? "" : fmt::format(" gap={}", gap));
  }
};

void run_case(Suite& s, const Case& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  Buffer rows(DType::kI32, {c.rows, c.count}), weights(DType::kF32, {c.rows, c.count});
  Buffer table(DType::kF32, {c.table, c.width}), x(DType::kF32, {c.rows, c.width + c.gap});
  for (int64_t i = 0; i < c.rows * c.count; ++i)
    rows.tensor().as<int32_t>()[i] = rng.integer(0, static_cast<int>(c.table) - 1);
  weights.fill([&] { return rng.uniform(0.0f, 1.0f); });
  table.fill([&] { return rng.normal(c.magnitude); });
  x.fill([&] { return rng.normal(c.magnitude); });
  const auto args = [&](const Buffer& r, const Buffer& w, const Buffer& out) -> MixRowsArgs {
    return {r, w, table, out.tensor().cols(0, c.width), c.add};
  };
  std::vector<double> want, bound;
  for (int64_t t = 0; t < c.rows; ++t)
    for (int64_t i = 0; i < c.width; ++i) {
      double sum = c.add ? static_cast<double>(load_float(x, t * (c.width + c.gap) + i)) : 0.0,
             magnitude = std::abs(sum);
      for (int64_t k = 0; k < c.count; ++k) {
        const double p = static_cast<double>(load_float(weights, t * c.count + k)) *
                         static_cast<double>(load_float(table, rows.tensor().row<int32_t>(t)[k] * c.width + i));
        sum += p;
        magnitude += std::abs(p);
      }
      want.push_back(sum);
      bound.push_back(static_cast<double>(c.count + 1) * kEpsF32 * magnitude + 1e-38);
    }
  Buffer same = x;
  kMixRowsOp.reference().launch(s.context(Device::kReference), args(rows, weights, same));
  for (const auto& k : s.kernels(kMixRowsOp.kernels, kOnGpu)) {
    Buffer got = x;
    if (!s.wants(k.name, name) || !k.fits(s.machine(), args(rows, weights, got))) continue;
    k.launch(s.context(Device::kCpu), args(rows, weights, got));
    s.expect_close(k.name, name, worst_excess(values(got.tensor().cols(0, c.width)), want, bound));
    s.expect_same_bits(k.name, name + " as the reference", got, same);  // and the gap between rows
    s.expect_guards(k.name, name, {&got, &table, &weights});
    s.expect_row_invariant(k.name, name, c.rows, [&](std::span<const int32_t> some) {
      Buffer part = x.gather(some);
      k.launch(s.context(Device::kCpu), args(rows.gather(some), weights.gather(some), part));
      return part;
    });
  }
}

}  // namespace

void mix_rows_conformance(Suite& s) {
  for (const int64_t width : {1, 7, 8, 16, 31, 65, 1152})
    for (const int64_t rows : {0, 1, 3, 40})
      for (const int64_t count : {1, 4, 16})
        for (const bool add : {false, true}) run_case(s, {rows, count, 1 + width % 37, width, add});
  run_case(s, {9, MixRowsArgs::kMost, 300, 20, false});
  for (const int64_t gap : {0, 4})  // rows of whole vectors, also of a GPU's
    for (const bool add : {false, true}) run_case(s, {9, 4, 50, 1152, add, 1.0f, gap});
  run_case(s, {5, 4, 64, 333, true, 1e30f});
  run_case(s, {5, 4, 64, 333, true, 1e-30f});
}

}  // namespace quire::conformance
