#include "ops/linear/cuda/kernels.h"

#include <algorithm>
#include <utility>

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/gemm/cuda/gemm.h"
#include "ops/gemm/cuda/rounded.h"

namespace quire::linear_cuda {
namespace {

gemm::Out out_of(const LinearPart& p) {
  if (p.add_to_y) return gemm::Out::kAddF32;
  return p.y.dtype == DType::kF32 ? gemm::Out::kF32 : gemm::Out::kBf16;
}

// The call as one launch.
gemm::Product product_of(const LinearArgs& a, gemm::Path path) {
  gemm::Product product(cuda::data<__nv_bfloat16>(a.x), a.x.stride[0], cuda::narrow(a.x.dim(0)));
  product.path = path;
  product.room = true;
  int64_t row_tiles = 0;
  for (const LinearPart& p : a.parts) row_tiles += cuda::packed(p.w).row_tiles();
  for (const LinearPart& p : a.parts) {
    gemm::PackedWeight w = cuda::packed(p.w);
    w.k_slice = gemm::k_slice_cols(row_tiles, w.cols, false);
    product.add(w, {.scale = p.w.scale,
                    .bias = p.bias.empty() ? nullptr : cuda::floats(p.bias),
                    .y = p.y.data,
                    .y_stride = p.y.stride[0],
                    .out = out_of(p)});
  }
  return product;
}

// What a product reads, for the order of weights: the two largest of its parts.
cuda::WeightOrder::Read parts_read(const LinearArgs& a) {
  cuda::WeightOrder::Read read{};
  for (const LinearPart& p : a.parts) {
    const cuda::WeightOrder::Range range = cuda::range_of(cuda::packed(p.w));
    if (range.bytes > read[0].bytes)
      read[1] = std::exchange(read[0], range);
    else if (range.bytes > read[1].bytes)
      read[1] = range;
  }
  return read;
}

bool is_product(const LinearArgs& a) {
  if (a.x.dtype != DType::kBF16 || a.parts.size() == 0) return false;
  return std::all_of(a.parts.begin(), a.parts.end(),
                     [](const LinearPart& p) { return cuda::is_activation(p.y) && p.w.experts == 1; });
}

}  // namespace

bool fits(const Machine& m, const LinearArgs& a, gemm::Path path) {
  return is_product(a) && gemm::takes(product_of(a, path), m.gpu);
}

bool prefers(const Machine& m, const LinearArgs& a, gemm::Path path) {
  return gemm::choose_path(product_of(a, gemm::Path::kAuto), m.gpu) == path;
}

void launch(const OpContext& ctx, const LinearArgs& a, gemm::Path path) {
  cuda::Context& c = cuda::context_of(ctx);
  gemm::Product product = product_of(a, path);
  c.weights.read(parts_read(a), c.dry);
  Workspace::Scope scope(ctx.workspace);
  product.sums = scope.take<float>(gemm::sliced_floats(product, ctx.machine.gpu));
  if (!c.dry) c.keep(launch_gemm(c.stream, product).context("linear"));
}

bool fits_rounded(const Machine& m, const LinearArgs& a, TokenRounding tokens) {
  return a.rounded.are(tokens) && is_product(a) && gemm::takes_rounded(tokens, product_of(a, gemm::Path::kAuto), m.gpu);
}

void launch_rounded(const OpContext& ctx, const LinearArgs& a, TokenRounding tokens) {
  cuda::Context& c = cuda::context_of(ctx);
  const gemm::Product product = product_of(a, gemm::Path::kAuto);
  c.weights.read(parts_read(a), c.dry);
  Workspace::Scope scope(ctx.workspace);
  std::byte* const room = scope.take<std::byte>(gemm::rounded_bytes(tokens, product));
  if (!c.dry) c.keep(gemm::launch_rounded(c.stream, tokens, product, room).context("linear"));
}

}  // namespace quire::linear_cuda
