#include "ops/conformance/gpu.h"
#include "ops/normalise_patches/normalise_patches.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<NormalisePatchesArgs> kOnGpu{[](Operands& o, NormalisePatchesArgs& a) {
                                               for (Tensor* t : {&a.x, &a.table, &a.y}) o.tensor(*t);
                                             },
                                             normalise_patches};

struct Case {
  int64_t rows = 1, run = 1, runs = 3, frames = 1, zeros = 0;
  DType type = DType::kF32;
  int64_t gap = 3;  // between rows of x, and of y

  int64_t bytes() const { return run * runs; }
  int64_t columns() const { return frames * bytes() + zeros; }
  std::string name() const {
    return fmt::format("T={} {} runs of {} {} frames {} zeros {} gap={}", rows, runs, run, frames, zeros,
                       dtype_name(type), gap);
  }
};

void run_case(Suite& s, const Case& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  Buffer x(DType::kI8, {c.rows, c.bytes() + c.gap}), table(DType::kF32, {3, 256});
  Buffer y(c.type, {c.rows, c.columns() + c.gap});
  auto* const bytes = reinterpret_cast<uint8_t*>(x.tensor().data);
  for (int64_t i = 0; i < x.tensor().elems(); ++i) bytes[i] = static_cast<uint8_t>(rng.integer(0, 255));
  for (int64_t i = 0; i < std::min<int64_t>(c.bytes(), c.rows > 0 ? 2 : 0); ++i) bytes[i] = i == 0 ? 255 : 0;
  table.fill([&] { return rng.normal(1.0f); });
  y.fill([&] { return rng.normal(1.0f); });
  const auto args = [&](const Buffer& from, const Buffer& to) -> NormalisePatchesArgs {
    return {from.tensor().cols(0, c.bytes()), table, to.tensor().cols(0, c.columns()), c.run, c.frames};
  };
  // By hand, run after run.
  std::vector<double> want;
  for (int64_t t = 0; t < c.rows; ++t) {
    for (int64_t r = 0; r < c.runs; ++r)
      for (int64_t f = 0; f < c.frames; ++f)
        for (int64_t i = 0; i < c.run; ++i) {
          const float v = load_float(table, r % 3 * 256 + bytes[t * (c.bytes() + c.gap) + r * c.run + i]);
          want.push_back(static_cast<double>(c.type == DType::kF32 ? v : to_float(to_bf16(v))));
        }
    want.insert(want.end(), static_cast<size_t>(c.zeros), 0.0);
  }
  const std::vector<double> exact(want.size(), 0.0);
  Buffer same = y;
  kNormalisePatchesOp.reference().launch(s.context(Device::kReference), args(x, same));
  for (const auto& k : s.kernels(kNormalisePatchesOp.kernels, kOnGpu)) {
    Buffer got = y;
    if (!s.wants(k.name, name) || !k.fits(s.machine(), args(x, got))) continue;
    k.launch(s.context(Device::kCpu), args(x, got));
    s.expect_close(k.name, name, worst_excess(values(got.tensor().cols(0, c.columns())), want, exact));
    s.expect_same_bits(k.name, name + " as the reference", got, same);  // and the gap between rows
    s.expect_guards(k.name, name, {&got, &x, &table});
    s.expect_row_invariant(k.name, name, c.rows, [&](std::span<const int32_t> some) {
      Buffer part = y.gather(some);
      k.launch(s.context(Device::kCpu), args(x.gather(some), part));
      return part;
    });
  }
}

}  // namespace

void normalise_patches_conformance(Suite& s) {
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const int64_t rows : {0, 1, 3, 40})
      for (const int64_t frames : {1, 2, 3})
        for (const int64_t run : {1, 3, 196, 256})
          for (const int64_t zeros : {0, 1, 4}) run_case(s, {rows, run, 3, frames, zeros, type});
  run_case(s, {7, 1, 768, 1, 0, DType::kBF16});
  for (const int64_t gap : {0, 4, 8})  // rows of whole vectors
    for (const DType type : {DType::kF32, DType::kBF16}) run_case(s, {9, 256, 3, 2, 0, type, gap});
}

}  // namespace quire::conformance
