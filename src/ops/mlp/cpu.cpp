// swiglu_mlp on a CPU, one region of three phases: pack the tokens; gate and up with the product written in
// packed form; down, added to the residual stream or not.
#include "ops/gemm/core.h"
#include "ops/mlp/kernels.h"

namespace quire::mlp_detail {

void run(const gemm::Core& core, const OpContext& ctx, const MlpArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.h.dim(0), width = a.h.dim(1), inner = a.gate.rows, threads = ctx.pool.size();
  const auto bias = [](const Tensor& b) { return b.empty() ? nullptr : b.as<float>(); };
  const Weight gate = gemm::as_read(core, a.gate), up = gemm::as_read(core, a.up), down = gemm::as_read(core, a.down);
  const bool packing = !core.in_place(a.h);
  gemm::Packed h{static_cast<std::byte*>(a.h.data), tokens, width};
  if (packing) h.data = scope.take<std::byte>(core.packed_bytes(tokens, width));
  const gemm::Packed mid{scope.take<std::byte>(core.packed_bytes(tokens, inner)), tokens, inner};
  const gemm::Epilogue out{a.x.data, DType::kF32, a.x.stride[0], bias(a.down_bias), nullptr, a.add_to_x};

  const int64_t scratch_bytes = core.scratch_bytes(gemm::kBlockPanels, tokens, std::max(width, inner));
  std::byte* const scratch = scope.take<std::byte>(scratch_bytes * threads);
  const int64_t units = gemm::swiglu_units(inner), panels = gemm::panels(width);
  const int64_t unit_job = gemm::job_units(units, ctx.pool.size(), a.gate.row_bytes() * 32, tokens, width);
  const int64_t panel_job = gemm::job_panels(panels, ctx.pool.size(), a.down.row_bytes() * 32, tokens, inner);
  const bool ahead = tokens <= gemm::kTileTokens;
  Phase pack_jobs(packing ? h.tiles() : 0), up_jobs((units + unit_job - 1) / unit_job),
      down_jobs((panels + panel_job - 1) / panel_job);
  ctx.pool.share([&](int thread) {
    std::byte* const mine = scratch + thread * scratch_bytes;
    pack_jobs.each(false, [&](int64_t tile, int64_t) { core.pack(a.h, nullptr, tile, h); });
    pack_jobs.wait();
    up_jobs.each(ahead, [&](int64_t job, int64_t next) {
      const int64_t first = job * unit_job;
      gemm::SwigluJob j{&gate,
                        &up,
                        0,
                        first * gemm::kPairRows,
                        std::min(unit_job, units - first),
                        bias(a.gate_bias),
                        bias(a.up_bias),
                        &h,
                        &mid,
                        a.h.dtype == DType::kBF16,
                        a.activation};
      if (next >= 0) j.prefetch = gemm::prefetch_of(gate, up, 0, next * unit_job * gemm::kPairRows, unit_job);
      core.swiglu(j, mine);
    });
    up_jobs.wait();
    down_jobs.each(ahead, [&](int64_t job, int64_t next) {
      const int64_t first = job * panel_job;
      gemm::ProjectJob j{&down, 0, first * gemm::kPanelRows, std::min(panel_job, panels - first), &mid, &out};
      if (next >= 0) j.prefetch = gemm::prefetch_of(down, 0, next * panel_job * gemm::kPanelRows, panel_job);
      core.project(j, mine);
    });
    core.finish();
  });
}

}  // namespace quire::mlp_detail
