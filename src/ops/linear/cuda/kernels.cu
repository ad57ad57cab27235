#include "ops/linear/cuda/kernels.h"

#include <algorithm>
#include <utility>

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/gemm/cuda/gemm.h"

namespace quire::linear_cuda {
namespace {

gemm::Out out_of(const LinearPart& p) {
  if (p.add_to_y) return gemm::Out::kAddF32;
  return p.y.dtype == DType::kF32 ? gemm::Out::kF32 : gemm::Out::kBf16;
}

// The call as one launch.
struct Product {
  gemm::GemmPart parts[LinearParts::kMost];
  gemm::GemmParams params;

  Product(const LinearArgs& a, gemm::Path path) {
    int64_t row_tiles = 0;
    for (size_t i = 0; i < a.parts.size(); ++i) {
      const LinearPart& p = a.parts[i];
      parts[i] = {.weight = cuda::packed(p.w),
                  .scale = p.w.scale,
                  .bias = p.bias.empty() ? nullptr : cuda::floats(p.bias),
                  .y = p.y.data,
                  .y_stride = p.y.stride[0],
                  .out = out_of(p)};
      row_tiles += parts[i].weight.row_tiles();
    }
    for (size_t i = 0; i < a.parts.size(); ++i)
      parts[i].weight.segment = gemm::segment_cols(row_tiles, parts[i].weight.cols);
    params.parts = parts;
    params.part_count = cuda::narrow(std::ssize(a.parts));
    params.x = cuda::data<__nv_bfloat16>(a.x);
    params.x_stride = a.x.stride[0];
    params.rows = cuda::narrow(a.x.dim(0));
    params.path = path;
    params.room = true;
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
};

// What a product reads, for the order of weights: the two largest of its parts.
cuda::WeightOrder::Read parts_read(const gemm::GemmParams& p) {
  cuda::WeightOrder::Read read{};
  for (int32_t i = 0; i < p.part_count; ++i) {
    const cuda::WeightOrder::Range range = cuda::range_of(p.parts[i].weight);
    if (range.bytes > read[0].bytes)
      read[1] = std::exchange(read[0], range);
    else if (range.bytes > read[1].bytes)
      read[1] = range;
  }
  return read;
}

}  // namespace

bool fits(const Machine& m, const LinearArgs& a, gemm::Path path) {
  if (a.x.dtype != DType::kBF16 || a.parts.size() == 0) return false;
  for (const LinearPart& p : a.parts)
    if (!cuda::is_activation(p.y) || p.w.experts != 1) return false;
  return gemm::takes(Product(a, path).params, m.gpu);
}

bool prefers(const Machine& m, const LinearArgs& a, gemm::Path path) {
  return gemm::choose_path(Product(a, gemm::Path::kAuto).params, m.gpu) == path;
}

void launch(const OpContext& ctx, const LinearArgs& a, gemm::Path path) {
  cuda::Context& c = cuda::context_of(ctx);
  Product product(a, path);
  c.weights.read(parts_read(product.params), c.dry);
  Workspace::Scope scope(ctx.workspace);
  product.params.sums = scope.take<float>(gemm::split_floats(product.params, ctx.machine.gpu));
  if (!c.dry) c.keep(launch_gemm(c.stream, product.params).context("linear"));
}

}  // namespace quire::linear_cuda
