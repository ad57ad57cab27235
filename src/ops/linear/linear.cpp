#include "ops/linear/linear.h"

#include <algorithm>

#include "ops/gemm/cuda/packed.h"
#include "ops/gemm/table.h"
#include "ops/linear/cuda/kernels.h"
#include "ops/linear/kernels.h"
#include "ops/observer.h"

namespace quire {
namespace {

bool fits_bf16(const LinearArgs& a, bool (*passes)(DType)) {
  return std::all_of(a.parts.begin(), a.parts.end(),
                     [&](const LinearPart& p) { return gemm::fits_bf16(a.x.dtype, {&p.w}, passes); });
}

using InE4m3 = linear_cuda::RoundedEntry<TokenRounding::kE4m3>;
using InFp4 = linear_cuda::RoundedEntry<TokenRounding::kFp4>;
constexpr auto kKernels = joined(cuda_rows<LinearArgs>({
                                     {"cuda_e4m3", InE4m3::fits, InE4m3::launch, GpuLevel::kWgmma, nullptr,
                                      "FP8 weights, tokens that become E4M3, compute capability 9.0"},
                                     {"cuda_fp4", InFp4::fits, InFp4::launch, GpuLevel::kFp4, nullptr,
                                      "NVFP4 or MXFP4 weights, tokens that become FP4, compute capability 12.x"},
                                 }),
                                 cuda_rows(gemm::kFamilies<LinearArgs, linear_cuda::Entry>),
                                 gemm::kTable<LinearArgs, linear_detail::run, linear_detail::reference, fits_bf16>);

void check(const LinearArgs& a) {
  Dim tokens{"T"}, cols{"K"};
  expect_shape("x", a.x, tokens, cols);
  for (const LinearPart& p : a.parts) {
    QUIRE_CHECK(!p.w.empty(), "linear: a part has no weight");
    QUIRE_CHECK(p.w.cols == cols, "linear: w has {} columns, but K = {}", p.w.cols, cols.value);
    expect_shape("y", p.y, tokens, p.w.rows);
    if (!p.bias.empty()) expect_shape("bias", p.bias, p.w.rows);
    QUIRE_CHECK(!p.add_to_y || p.y.dtype == DType::kF32, "linear: a residual y is f32, not {}", dtype_name(p.y.dtype));
  }
}

Traffic traffic_of(const LinearArgs& a) {
  Traffic t{.bytes = a.x.bytes()};
  for (const LinearPart& p : a.parts)
    t += {.bytes = p.w.bytes() + p.bias.bytes() + p.y.bytes() * (p.add_to_y ? 2 : 1),
          .flops = 2 * a.x.dim(0) * p.w.params()};
  return t;
}

std::string describe_args(const LinearArgs& a) {
  std::string text = fmt::format("x {}", describe(a.x));
  for (const LinearPart& p : a.parts) text += fmt::format(", w {}", describe(p.w));
  return text.append(gemm::note(a.rounded));
}

// What the parts of one launch have in common. A GPU's products are of one format. CPUs without AVX-512 have kernels
// for integers and for floats, but none for both; some have one for BF16.
int kind_of(const Machine& m, const LinearPart& p) {
  if (m.device == Device::kCuda) return static_cast<int>(gemm::tile_format(p.w.dtype));
  if (m.device != Device::kCpu) return 0;
  if (!m.cpu.avx512_bf16 && gemm::has_integers(p.w.dtype)) return 1;
  return m.cpu.bf16 && p.w.dtype == DType::kBF16 ? 2 : 0;
}

// Rows of several kinds go apart, as far as the weights are of a type that takes notice.
void dispatch_rows(const OpContext& ctx, LinearArgs a) {
  if (std::none_of(a.parts.begin(), a.parts.end(),
                   [&](const LinearPart& p) { return gemm::rounds_beside(a.rounded.to, p.w.dtype); }))
    a.rounded = {};
  gemm::split_rows(a, a.x.dim(0), [&](const LinearArgs& part) { dispatch(kLinearOp, ctx, part); });
}

// Parts of a call that are of different kinds go apart, each with its own kernel. Their results do not depend on each
// other.
void dispatch_parts(const OpContext& ctx, const LinearArgs& a) {
  std::array<int, LinearParts::kMost> kinds;
  for (size_t i = 0; i < a.parts.size(); ++i) kinds[i] = kind_of(ctx.machine, a.parts[i]);
  const std::span<const int> all(kinds.data(), a.parts.size());
  std::array<LinearPart, LinearParts::kMost> of_kind;
  uint32_t done = 0;  // a bit for each part
  for (size_t first = 0; first < all.size(); ++first) {
    if ((done >> first & 1u) != 0) continue;
    size_t count = 0;
    for (size_t i = first; i < all.size(); ++i) {
      if (all[i] != all[first]) continue;
      of_kind[count++] = a.parts[i];
      done |= 1u << i;
    }
    if (count == all.size()) return dispatch_rows(ctx, a);
    LinearArgs part = a;
    part.parts = std::span<const LinearPart>(of_kind.data(), count);
    dispatch_rows(ctx, part);
  }
}

}  // namespace

constinit const Operator<LinearArgs> kLinearOp{"linear", kKernels, traffic_of, describe_args};

void linear(const OpContext& ctx, const LinearArgs& a) {
  check(a);
  if (a.x.dim(0) == 0) return;
  if (ctx.observer != nullptr) {
    std::vector<const Weight*> weights;
    for (const LinearPart& p : a.parts) weights.push_back(&p.w);
    ctx.observer->inputs(ctx, weights, 0, a.x);
  }
  dispatch_parts(ctx, a);
}

LinearArgs LinearArgs::rows(int64_t begin, int64_t count) const {
  LinearArgs a = *this;
  a.x = x.rows(begin, count);
  for (LinearPart& p : a.parts) p.y = p.y.rows(begin, count);
  a.latency_rows = std::clamp<int64_t>(latency_rows - begin, 0, count);
  a.rounded.rows = std::clamp<int64_t>(begin + count - (x.dim(0) - rounded.rows), 0, count);
  return a;
}

}  // namespace quire
