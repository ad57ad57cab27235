#include "ops/linear/linear.h"

#include <algorithm>

#include "ops/cuda/ops.h"
#include "ops/gemm/table.h"
#include "ops/linear/kernels.h"
#include "ops/observer.h"

namespace quire {
namespace {

bool fits_bf16(const LinearArgs& a, bool (*passes)(DType)) {
  return std::all_of(a.parts.begin(), a.parts.end(),
                     [&](const LinearPart& p) { return gemm::fits_bf16(a.x.dtype, {&p.w}, passes); });
}

constexpr auto& kKernels = gemm::kTable<LinearArgs, linear_detail::run, linear_detail::reference, fits_bf16>;

void check(const LinearArgs& a) {
  Dim tokens{"T"}, cols{"K"};
  expect_shape("x", a.x, tokens, cols);
  for (const LinearPart& p : a.parts) {
    QUIRE_CHECK(!p.w.empty(), "linear: a part has no weight");
    QUIRE_CHECK(p.w.cols == cols, "linear: w has {} columns, but K = {}", p.w.cols, cols.value);
    expect_shape("y", p.y, tokens, p.w.rows);
    if (!p.bias.empty()) expect_shape("bias", p.bias, p.w.rows);
    QUIRE_CHECK(!p.add_to_y || p.y.dtype == DType::kF32, "linear: a residual y is f32, not {}",
                dtype_name(p.y.dtype));
  }
}

Traffic traffic_of(const LinearArgs& a) {
  Traffic t{.bytes = a.x.bytes()};
  for (const LinearPart& p : a.parts)
    t += {.bytes = p.w.bytes() + p.bias.bytes() + p.y.bytes() * (p.add_to_y ? 2 : 1),
          .flops = 2 * a.x.dim(0) * p.w.params()};
  return t;
}

// CPUs without AVX-512 have kernels for integers and for floats, but none for both: parts of a call that are of either kind
// go apart, each with its own. Their results do not depend on each other.
void dispatch_parts(const OpContext& ctx, const LinearArgs& a) {
  const auto has_integers = [](const LinearPart& p) { return gemm::has_wide_integers(p.w.dtype); };
  const bool some = std::any_of(a.parts.begin(), a.parts.end(), has_integers),
             all = std::all_of(a.parts.begin(), a.parts.end(), has_integers);
  if (ctx.machine.device != Device::kCpu || ctx.machine.cpu.avx512_bf16 || some == all)
    return dispatch(kLinearOp, ctx, a);
  for (const bool integers : {true, false}) {
    std::array<LinearPart, LinearParts::kMost> of_kind;
    size_t count = 0;
    for (const LinearPart& p : a.parts)
      if (has_integers(p) == integers) of_kind[count++] = p;
    LinearArgs part = a;
    part.parts = std::span<const LinearPart>(of_kind.data(), count);
    dispatch(kLinearOp, ctx, part);
  }
}

}  // namespace

constinit const Operator<LinearArgs> kLinearOp{"linear", kKernels, traffic_of};

void linear(const OpContext& ctx, const LinearArgs& a) {
  check(a);
  if (a.x.dim(0) == 0) return;
  if (ctx.observer != nullptr) {
    std::vector<const Weight*> weights;
    for (const LinearPart& p : a.parts) weights.push_back(&p.w);
    ctx.observer->inputs(ctx, weights, 0, a.x);
  }
  if (ctx.on_gpu()) return cuda::linear(ctx, a);
  gemm::split_rows(a, a.x.dim(0), [&](const LinearArgs& part) { dispatch_parts(ctx, part); });
}

LinearArgs LinearArgs::rows(int64_t begin, int64_t count) const {
  LinearArgs a = *this;
  a.x = x.rows(begin, count);
  for (LinearPart& p : a.parts) p.y = p.y.rows(begin, count);
  a.latency_rows = std::clamp<int64_t>(latency_rows - begin, 0, count);
  return a;
}

}  // namespace quire
