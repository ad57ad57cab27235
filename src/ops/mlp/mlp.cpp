#include "ops/mlp/mlp.h"

#include <algorithm>

#include "ops/gemm/table.h"
#include "ops/mlp/cuda/kernels.h"
#include "ops/mlp/kernels.h"
#include "ops/observer.h"

namespace quire {
namespace {

bool fits_bf16(const MlpArgs& a, bool (*passes)(DType)) {
  return gemm::fits_bf16(a.h.dtype, {&a.gate, &a.up, &a.down}, passes);
}

using InE4m3 = mlp_cuda::RoundedEntry<TokenRounding::kE4m3>;
using InFp4 = mlp_cuda::RoundedEntry<TokenRounding::kFp4>;
// On a GPU each product goes to the family that is expected to be its fastest, or both to one that is asked for.
constexpr auto kKernels = joined(  //
    cuda_rows<MlpArgs>({
        {"cuda_e4m3", InE4m3::fits, InE4m3::launch, GpuLevel::kWgmma, nullptr, mlp_cuda::kE4m3Takes},
        {"cuda_fp4", InFp4::fits, InFp4::launch, GpuLevel::kFp4, nullptr, mlp_cuda::kFp4Takes},
        {"cuda", mlp_cuda::fits_any, mlp_cuda::launch_any, GpuLevel::kMma, nullptr, mlp_cuda::kTakes},
    }),
    cuda_rows(gemm::kFamilies<MlpArgs, mlp_cuda::Entry>),
    gemm::kTable<MlpArgs, mlp_detail::run, mlp_detail::reference, fits_bf16>);

void check(const MlpArgs& a) {
  Dim tokens{"T"}, width{"D"}, inner{"F", a.gate.rows};
  expect_shape("h", a.h, tokens, width);
  expect_shape("x", a.x, tokens, width);
  QUIRE_CHECK(a.x.dtype == DType::kF32, "swiglu_mlp: x is f32, not {}", dtype_name(a.x.dtype));
  QUIRE_CHECK(
      a.gate.cols == width && a.up.cols == width && a.up.rows == inner && a.down.cols == inner && a.down.rows == width,
      "swiglu_mlp: gate is [{}, {}], up [{}, {}], down [{}, {}] for D = {}", a.gate.rows, a.gate.cols, a.up.rows,
      a.up.cols, a.down.rows, a.down.cols, width.value);
  if (!a.gate_bias.empty()) expect_shape("gate_bias", a.gate_bias, inner);
  if (!a.up_bias.empty()) expect_shape("up_bias", a.up_bias, inner);
  if (!a.down_bias.empty()) expect_shape("down_bias", a.down_bias, width);
}

Traffic traffic_of(const MlpArgs& a) {
  const int64_t biases = a.gate_bias.bytes() + a.up_bias.bytes() + a.down_bias.bytes();
  return {
      .bytes =
          a.gate.bytes() + a.up.bytes() + a.down.bytes() + biases + a.h.bytes() + a.x.bytes() * (a.add_to_x ? 2 : 1),
      .flops = a.h.dim(0) * (2 * (a.gate.params() + a.up.params() + a.down.params()) + a.gate.rows * (kSiluFlops + 1))};
}

std::string describe_args(const MlpArgs& a) {
  return fmt::format("h {}, gate {}, up {}, down {}{}{}", describe(a.h), describe(a.gate), describe(a.up),
                     describe(a.down), activation_note(a.activation), gemm::note(a.rounded));
}

}  // namespace

constinit const Operator<MlpArgs> kMlpOp{"swiglu_mlp", kKernels, traffic_of, describe_args};

void swiglu_mlp(const OpContext& ctx, const MlpArgs& a) {
  check(a);
  if (a.h.dim(0) == 0) return;
  if (ctx.observer != nullptr)
    observe_mlp(ctx,
                {.gate = &a.gate,
                 .up = &a.up,
                 .down = &a.down,
                 .gate_bias = a.gate_bias,
                 .up_bias = a.up_bias,
                 .activation = a.activation},
                a.h);
  MlpArgs all = a;
  all.rounded = gemm::rounded_beside({&a.gate, &a.up, &a.down}, a.rounded);
  gemm::split_rows(all, a.h.dim(0), [&](const MlpArgs& part) { dispatch(kMlpOp, ctx, part); });
}

MlpArgs MlpArgs::rows(int64_t begin, int64_t count) const {
  MlpArgs a = *this;
  a.h = h.rows(begin, count);
  a.x = x.rows(begin, count);
  a.latency_rows = std::clamp<int64_t>(latency_rows - begin, 0, count);
  a.rounded.rows = std::clamp<int64_t>(begin + count - (h.dim(0) - rounded.rows), 0, count);
  return a;
}

}  // namespace quire
