#include "ops/mlp/cuda/kernels.h"

#include <algorithm>

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/gemm/cuda/gemm.h"

namespace quire::mlp_cuda {
namespace {

const float* bias_of(const Tensor& t) {
  return t.empty() ? nullptr : cuda::floats(t);
}

// The two launches of a call. `mid` holds SiLU(g) * u in bf16; its rows are aligned to 16 bytes whatever F is.
struct Products {
  gemm::GemmPart up, down;
  gemm::GemmParams first, second;
  int64_t mid_bytes;

  Products(const MlpArgs& a, gemm::Path path) {
    const int64_t inner = (a.gate.rows + 7) / 8 * 8;
    mid_bytes = (a.h.dim(0) * inner * 2 + 255) / 256 * 256;
    up = {.weight = cuda::packed_pair(a.gate),
          .scale = a.gate.scale,
          .scale2 = a.up.scale,
          .bias = bias_of(a.gate_bias),
          .bias2 = bias_of(a.up_bias),
          .y_stride = inner};
    down = {.weight = cuda::packed(a.down),
            .scale = a.down.scale,
            .bias = bias_of(a.down_bias),
            .y = a.x.data,
            .y_stride = a.x.stride[0],
            .out = a.add_to_x ? gemm::Out::kAddF32 : gemm::Out::kF32};
    for (gemm::GemmParams* p : {&first, &second}) {
      p->part_count = 1;
      p->rows = cuda::narrow(a.h.dim(0));
      p->path = path;
      p->room = true;
    }
    first.parts = &up;
    first.x = cuda::data<__nv_bfloat16>(a.h);
    first.x_stride = a.h.stride[0];
    if (path == gemm::Path::kSplit) first.path = gemm::Path::kTile;
    second.parts = &down;
    second.x_stride = inner;
  }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  void place(std::byte* mid, float* sums) {
    up.y = mid;
    second.x = reinterpret_cast<const __nv_bfloat16*>(mid);
    first.sums = second.sums = sums;
  }
  int64_t sums(const cuda::DeviceLimits& gpu) const {
    return std::max(split_floats(first, gpu), split_floats(second, gpu));
  }
};

}  // namespace

bool fits(const Machine& m, const MlpArgs& a, gemm::Path path) {
  if (a.h.dtype != DType::kBF16 || a.gate.dtype != a.up.dtype || a.gate.experts != 1) return false;
  Products p(a, path);
  p.place(reinterpret_cast<std::byte*>(uintptr_t{256}), nullptr);  // some aligned address: nothing is read
  return takes(p.first, m.gpu) && takes(p.second, m.gpu);
}

void launch(const OpContext& ctx, const MlpArgs& a, gemm::Path path) {
  cuda::Context& c = cuda::context_of(ctx);
  Products p(a, path);
  for (const gemm::PackedWeight* w : {&p.up.weight, &p.down.weight}) c.weights.read({cuda::range_of(*w), {}}, c.dry);
  Workspace::Scope scope(ctx.workspace);
  std::byte* const mid = scope.take<std::byte>(p.mid_bytes);
  p.place(mid, scope.take<float>(p.sums(ctx.machine.gpu)));
  if (c.dry) return;
  c.keep(launch_gemm(c.stream, p.first).context("swiglu_mlp: gate and up"));
  c.keep(launch_gemm(c.stream, p.second).context("swiglu_mlp: down"));
}

}  // namespace quire::mlp_cuda
