// linear on a CPU: the tokens are packed once, then threads take panels of all parts from one counter.
#include "ops/gemm/core.h"
#include "ops/linear/kernels.h"

namespace quire::linear_detail {
namespace {

struct Part {
  const LinearPart* part = nullptr;
  gemm::Store out;
  int64_t first_unit = 0;
};

}  // namespace

void run(const gemm::Core& core, const OpContext& ctx, const LinearArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.x.dim(0), cols = a.x.dim(1), threads = ctx.pool.size();
  const bool packing = !core.in_place(a.x);
  gemm::Packed x{static_cast<std::byte*>(a.x.data), tokens, cols};
  if (packing) x.data = scope.take<std::byte>(core.packed_bytes(tokens, cols));

  Part* parts = scope.take<Part>(static_cast<int64_t>(a.parts.size()));
  int64_t units = 0, row_bytes = 0;
  for (size_t i = 0; i < a.parts.size(); ++i) {
    const LinearPart& p = a.parts[i];
    const float* bias = p.bias.empty() ? nullptr : p.bias.as<float>();
    parts[i] = {&p, {p.y.data, p.y.dtype, p.y.stride[0], bias, nullptr, p.add_to_y}, units};
    units += gemm::panels(p.w.rows);
    row_bytes = std::max(row_bytes, p.w.row_bytes());
  }
  const int64_t scratch_bytes = core.scratch_bytes(cols);
  std::byte* scratch = scope.take<std::byte>(scratch_bytes * threads);
  const int64_t piece = gemm::grain(units, ctx.pool.size(), row_bytes * gemm::kPanelRows);
  gemm::Counter counter;
  ctx.pool.run([&](int thread) {
    if (packing) {
      for (int64_t tile = thread; tile < x.tiles(); tile += threads) core.pack(a.x, nullptr, tile, x);
      ctx.pool.barrier();
    }
    counter.each(units, piece, [&](int64_t unit) {
      size_t i = a.parts.size() - 1;
      while (parts[i].first_unit > unit) --i;
      const int64_t row = (unit - parts[i].first_unit) * gemm::kPanelRows;
      core.project({&parts[i].part->w, 0, row, &x, &parts[i].out}, scratch + thread * scratch_bytes);
    });
    core.finish();
  });
}

}  // namespace quire::linear_detail
