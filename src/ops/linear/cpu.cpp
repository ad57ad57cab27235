// linear on a CPU: the tokens are packed once, then threads take panels of all parts from one queue.
#include "ops/gemm/core.h"
#include "ops/linear/kernels.h"

namespace quire::linear_detail {
namespace {

struct Part {
  Weight w;
  gemm::Epilogue out;
  int64_t first_job = 0;
  int64_t job_panels = 1;

  int64_t panel(int64_t job) const { return (job - first_job) * job_panels; }
};

}  // namespace

void run(const gemm::Core& core, const OpContext& ctx, const LinearArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.x.dim(0), cols = a.x.dim(1), threads = ctx.pool.size();
  const bool packing = !core.in_place(a.x);
  gemm::Packed x{static_cast<std::byte*>(a.x.data), tokens, cols};
  if (packing) x.data = scope.take<std::byte>(core.packed_bytes(tokens, cols));

  Part* parts = scope.take<Part>(static_cast<int64_t>(a.parts.size()));
  int64_t jobs = 0;
  for (size_t i = 0; i < a.parts.size(); ++i) {
    const LinearPart& p = a.parts[i];
    const float* bias = p.bias.empty() ? nullptr : p.bias.as<float>();
    const Weight w = gemm::as_read(core, p.w);
    const int64_t panels = gemm::panels(w.rows);
    const int64_t size = gemm::job_panels(panels, ctx.pool.size(), w.row_bytes() * gemm::kPanelRows, tokens, cols);
    parts[i] = {w, {p.y.data, p.y.dtype, p.y.stride[0], bias, nullptr, p.add_to_y}, jobs, size};
    jobs += (panels + size - 1) / size;
  }
  const int64_t scratch_bytes = core.scratch_bytes(gemm::kBlockPanels, tokens, cols);
  std::byte* scratch = scope.take<std::byte>(scratch_bytes * threads);
  Phase pack(packing ? x.tiles() : 0), project(jobs);
  ctx.pool.share([&](int thread) {
    pack.each(false, [&](int64_t tile, int64_t) { core.pack(a.x, nullptr, tile, x); });
    pack.wait();
    const auto find = [&](int64_t job) -> const Part& {
      size_t i = a.parts.size() - 1;
      while (parts[i].first_job > job) --i;
      return parts[i];
    };
    project.each(tokens <= gemm::kTileTokens, [&](int64_t job, int64_t next) {
      const Part& p = find(job);
      const int64_t panel = p.panel(job);
      const int64_t count = std::min(p.job_panels, gemm::panels(p.w.rows) - panel);
      gemm::ProjectJob j{&p.w, 0, panel * gemm::kPanelRows, count, &x, &p.out};
      if (next >= 0) {
        const Part& n = find(next);
        j.prefetch = gemm::prefetch_of(n.w, 0, n.panel(next) * gemm::kPanelRows, n.job_panels);
      }
      core.project(j, scratch + thread * scratch_bytes);
    });
    core.finish();
  });
}

}  // namespace quire::linear_detail
