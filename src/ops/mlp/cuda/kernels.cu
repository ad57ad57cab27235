#include "ops/mlp/cuda/kernels.h"

#include <algorithm>

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/gemm/cuda/gemm.h"
#include "ops/gemm/cuda/rounded.h"

namespace quire::mlp_cuda {
namespace {

const float* bias_of(const Tensor& t) {
  return t.empty() ? nullptr : cuda::floats(t);
}

// The two launches of a call. Between them `mid` holds gated(g, u) in bf16; its rows are aligned to 16 bytes whatever F
// is.
struct Products {
  int32_t rows;
  int64_t inner, mid_bytes;
  gemm::Product up, down;

  Products(const MlpArgs& a, gemm::Path path)
      : rows(cuda::narrow(a.h.dim(0))),
        inner((a.gate.rows + 7) / 8 * 8),
        mid_bytes((rows * inner * 2 + 255) / 256 * 256),
        up(cuda::data<__nv_bfloat16>(a.h), a.h.stride[0], rows),
        down(nullptr, inner, rows) {
    up.add(cuda::packed_pair(a.gate), {.scale = a.gate.scale,
                                       .scale2 = a.up.scale,
                                       .bias = bias_of(a.gate_bias),
                                       .bias2 = bias_of(a.up_bias),
                                       .y_stride = inner});
    down.add(cuda::packed(a.down), {.scale = a.down.scale,
                                    .bias = bias_of(a.down_bias),
                                    .y = a.x.data,
                                    .y_stride = a.x.stride[0],
                                    .out = a.add_to_x ? gemm::Out::kAddF32 : gemm::Out::kF32});
    up.problem.activation = a.activation;
    up.path = path == gemm::Path::kSliced ? gemm::Path::kTile : path;
    down.path = path;
    up.room = down.room = true;
  }

  void place(std::byte* mid, float* sums) {
    up.problem.part[0].y = mid;
    down.problem.x = reinterpret_cast<const __nv_bfloat16*>(mid);
    up.sums = down.sums = sums;
  }
  int64_t sums(const cuda::DeviceLimits& gpu) const {
    return std::max(sliced_floats(up, gpu), sliced_floats(down, gpu));
  }
};

// Whether both products can be computed by this path, and at least one of them of rounded tokens where that is asked
// for.
bool fits(const Machine& m, const MlpArgs& a, gemm::Path path, TokenRounding tokens) {
  if (a.h.dtype != DType::kBF16 || a.gate.dtype != a.up.dtype || a.gate.experts != 1) return false;
  Products p(a, path);
  p.place(reinterpret_cast<std::byte*>(uintptr_t{256}), nullptr);  // some aligned address: nothing is read
  if (tokens != TokenRounding::kNone && !takes_rounded(tokens, p.up, m.gpu) && !takes_rounded(tokens, p.down, m.gpu))
    return false;
  return takes(p.up, m.gpu) && takes(p.down, m.gpu);
}

void launch(const OpContext& ctx, const MlpArgs& a, gemm::Path path, TokenRounding tokens) {
  cuda::Context& c = cuda::context_of(ctx);
  Products p(a, path);
  c.weights.read({cuda::range_of(cuda::packed_pair(a.gate)), {}}, c.dry);
  c.weights.read({cuda::range_of(cuda::packed(a.down)), {}}, c.dry);
  Workspace::Scope scope(ctx.workspace);
  const cuda::DeviceLimits& gpu = ctx.machine.gpu;
  std::byte* const mid = scope.take<std::byte>(p.mid_bytes);
  p.place(mid, scope.take<float>(p.sums(gpu)));
  const bool up = takes_rounded(tokens, p.up, gpu), down = takes_rounded(tokens, p.down, gpu);
  std::byte* const room = scope.take<std::byte>(
      std::max(up ? gemm::rounded_bytes(tokens, p.up) : 0, down ? gemm::rounded_bytes(tokens, p.down) : 0));
  if (c.dry) return;
  const auto one = [&](const gemm::Product& product, bool rounded) {
    return rounded ? gemm::launch_rounded(c.stream, tokens, product, room) : launch_gemm(c.stream, product);
  };
  c.keep(one(p.up, up).context("swiglu_mlp: gate and up"));
  c.keep(one(p.down, down).context("swiglu_mlp: down"));
}

}  // namespace

bool fits(const Machine& m, const MlpArgs& a, gemm::Path path) {
  return fits(m, a, path, TokenRounding::kNone);
}
void launch(const OpContext& ctx, const MlpArgs& a, gemm::Path path) {
  launch(ctx, a, path, TokenRounding::kNone);
}

bool fits_rounded(const Machine& m, const MlpArgs& a, TokenRounding tokens) {
  return a.rounded.are(tokens) && fits(m, a, gemm::Path::kAuto, tokens);
}
void launch_rounded(const OpContext& ctx, const MlpArgs& a, TokenRounding tokens) {
  launch(ctx, a, gemm::Path::kAuto, tokens);
}

}  // namespace quire::mlp_cuda
