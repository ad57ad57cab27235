#include <cmath>
#include <numeric>

#include "ops/conformance/gpu.h"
#include "ops/norm/norm.h"

namespace quire::conformance {
namespace {

double output_eps(DType t) {
  return t == DType::kBF16 ? kEpsBf16 : kEpsF32;
}

// Relative error of 1 / sqrt(mean of D squares) in float32: a kernel adds in at least 8 x 4 accumulators, so
// an accumulator takes D / 32 additions and the tree a few more; the root halves the error.
double rms_eps(int64_t D) {
  return (static_cast<double>(D) / 64.0 + 16.0) * kEpsF32;
}

constexpr OnGpu<AddRmsNormArgs> kAddRmsNormOnGpu{[](Operands& o, AddRmsNormArgs& a) {
                                                   for (Tensor* t : {&a.x, &a.add, &a.weight, &a.h}) o.tensor(*t);
                                                 },
                                                 add_rms_norm};

constexpr OnGpu<GatedRmsNormArgs> kGatedRmsNormOnGpu{[](Operands& o, GatedRmsNormArgs& a) {
                                                       for (Tensor* t : {&a.o, &a.z, &a.weight, &a.y}) o.tensor(*t);
                                                     },
                                                     gated_rms_norm};

// The rows of a matrix that is the left part of a wider one: rows that are not contiguous with each other.
Tensor left_columns(const Buffer& wide, int64_t D) {
  return wide.tensor().cols(0, D);
}

// `gap`: elements between the rows of x.
void add_rms_norm_case(Suite& s, const std::string& name, int64_t T, int64_t D, DType add_type, bool with_add,
                       DType h_type, float magnitude, int64_t gap = 4) {
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  Buffer x(DType::kF32, {T, D + gap}), add(add_type, {T, D}), weight(DType::kF32, {D});
  x.fill([&] { return rng.normal(magnitude); });
  add.fill([&] { return rng.normal(magnitude); });
  weight.fill([&] { return 1.0f + rng.normal(0.3f); });
  // Row 0 is zero: eps keeps it finite.
  for (int64_t i = 0; i < D; ++i) {
    store_float(x.tensor(), i, 0.0f);
    store_float(add.tensor(), i, 0.0f);
  }

  Buffer want_x = x, want_h(DType::kF32, {T, D});
  kAddRmsNormOp.reference().launch(
      s.context(Device::kReference),
      {left_columns(want_x, D), with_add ? add.tensor() : Tensor{}, weight, 1e-6f, want_h});
  const std::vector<float> want = want_h.values();
  std::vector<double> bound(want.size());
  for (size_t i = 0; i < want.size(); ++i)
    bound[i] = std::abs(static_cast<double>(want[i])) * (output_eps(h_type) + rms_eps(D)) + 1e-38;

  for (const auto& k : s.kernels(kAddRmsNormOp.kernels, kAddRmsNormOnGpu)) {
    const auto run = [&](const Buffer& rows_x, const Buffer& rows_add, const Buffer& h) {
      k.launch(s.context(Device::kCpu),
               {left_columns(rows_x, D), with_add ? rows_add.tensor() : Tensor{}, weight, 1e-6f, h});
    };
    Buffer got_x = x, got_h(h_type, {T, D});
    const AddRmsNormArgs args{left_columns(got_x, D), with_add ? add.tensor() : Tensor{}, weight, 1e-6f, got_h};
    if (!s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
    run(got_x, add, got_h);
    s.expect_close(k.name, name, worst_excess(got_h.values(), want, bound));
    s.expect_same_bits(k.name, name, got_x, want_x);  // one float32 addition: nothing to choose
    s.expect_guards(k.name, name, {&got_x, &got_h, &add, &weight});
    s.expect_row_invariant(k.name, name, T, [&](std::span<const int32_t> rows) {
      Buffer h(h_type, {static_cast<int64_t>(rows.size()), D});
      run(x.gather(rows), add.gather(rows), h);
      return h;
    });
  }
}

void gated_rms_norm_case(Suite& s, const std::string& name, int64_t T, int64_t Hv, int64_t Dv, DType type,
                         bool in_place) {
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  Buffer o(type, {T, Hv, Dv}), z(type, {T, Hv * Dv}), weight(DType::kF32, {Dv});
  o.fill([&] { return rng.normal(); });
  // Gates far out on both sides: SiLU underflows to zero and grows linearly.
  z.fill([&] { return rng.integer(0, 9) == 0 ? rng.uniform(-120.0f, 120.0f) : rng.normal(2.0f); });
  weight.fill([&] { return 1.0f + rng.normal(0.3f); });

  Buffer want_y(DType::kF32, {T, Hv * Dv});
  const Buffer o32 = o.as(DType::kF32), z32 = z.as(DType::kF32);
  kGatedRmsNormOp.reference().launch(s.context(Device::kReference), {o32, z32, weight, 1e-6f, want_y});
  const std::vector<float> want = want_y.values(), gates = z.values();
  std::vector<double> bound(want.size());
  for (size_t i = 0; i < want.size(); ++i)
    bound[i] = std::abs(static_cast<double>(want[i])) * (output_eps(type) + rms_eps(Dv)) + 1e-30;

  for (const auto& k : s.kernels(kGatedRmsNormOp.kernels, kGatedRmsNormOnGpu)) {
    const auto run = [&](Buffer& rows_o, const Buffer& rows_z, Buffer& y) {
      const int64_t n = rows_o.tensor().dim(0);
      const Tensor out = in_place ? rows_o.tensor().reshaped({n, Hv * Dv}) : y.tensor();
      k.launch(s.context(Device::kCpu), {rows_o, rows_z, weight, 1e-6f, out});
      if (in_place) y = rows_o;
    };
    Buffer got_o = o, y(type, {T, Hv * Dv});
    if (!s.wants(k.name, name) || !k.fits(s.machine(), {got_o, z, weight, 1e-6f, y})) continue;
    run(got_o, z, y);
    // A GPU's e^-z is 2^(z log2 e), whose exponent is rounded.
    std::vector<double> allowed = bound;
    for (size_t i = 0; k.on_gpu() && i < allowed.size(); ++i)
      allowed[i] += std::abs(static_cast<double>(want[i])) * (std::abs(static_cast<double>(gates[i])) + 4.0) * kEpsF32;
    s.expect_close(k.name, name, worst_excess(y.values(), want, allowed));
    s.expect_guards(k.name, name, {&got_o, &z, &y, &weight});
    s.expect_row_invariant(k.name, name, T, [&](std::span<const int32_t> rows) {
      Buffer part_o = o.gather(rows), part_y(type, {static_cast<int64_t>(rows.size()), Hv * Dv});
      run(part_o, z.gather(rows), part_y);
      return part_y;
    });
  }
}

}  // namespace

void add_rms_norm_conformance(Suite& s) {
  for (const int64_t D : {1, 7, 8, 16, 31, 64, 65, 127, 1024, 1100, 5120}) {
    for (const int64_t T : {1, 3, 17}) {
      for (const bool with_add : {false, true}) {
        const std::string name = fmt::format("T={} D={} add={}", T, D, with_add ? "bf16" : "none");
        add_rms_norm_case(s, name, T, D, DType::kBF16, with_add, DType::kBF16, 1.0f);
        add_rms_norm_case(s, name + " unaligned", T, D, DType::kBF16, with_add, DType::kBF16, 1.0f, 3);
      }
    }
  }
  add_rms_norm_case(s, "f32 add, f32 out", 9, 200, DType::kF32, true, DType::kF32, 1.0f);
  add_rms_norm_case(s, "f32 add, bf16 out", 9, 200, DType::kF32, true, DType::kBF16, 1.0f);
  add_rms_norm_case(s, "large", 5, 333, DType::kBF16, true, DType::kBF16, 1e6f);
  add_rms_norm_case(s, "small", 5, 333, DType::kBF16, true, DType::kBF16, 1e-6f);
  add_rms_norm_case(s, "many rows", 150, 96, DType::kBF16, true, DType::kBF16, 1.0f);
}

void gated_rms_norm_conformance(Suite& s) {
  for (const int64_t Dv : {5, 16, 32, 48, 64, 100, 128, 256}) {
    for (const int64_t Hv : {1, 3, 16}) {
      for (const DType type : {DType::kBF16, DType::kF32})
        gated_rms_norm_case(s, fmt::format("Hv={} Dv={} {}", Hv, Dv, dtype_name(type)), 11, Hv, Dv, type, false);
    }
  }
  gated_rms_norm_case(s, "in place", 20, 4, 128, DType::kBF16, true);
}

}  // namespace quire::conformance
