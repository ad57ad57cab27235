#include "parts/experts/experts.h"

namespace quire {

using enum TensorRole;

namespace {

Status load_matrices(WeightLoader& w, const Architecture& row, int64_t block, ExpertWeights& f) {
  if (w.has(kExpertsGateUp, block) || (row.dense_beside_experts && !w.has(kExpertsGate, block))) {
    QUIRE_TRY(const Weight fused, w.matrix(kExpertsGateUp, block));
    const int64_t width = size_of(Extent::kExpertFfn, w.sizes());
    f.gate = fused.row_slice(0, width);
    f.up = fused.row_slice(width, width);
  } else {
    QUIRE_TRY(f.gate, w.matrix(kExpertsGate, block));
    QUIRE_TRY(f.up, w.matrix(kExpertsUp, block));
  }
  QUIRE_TRY(f.down, w.matrix(kExpertsDown, block));
  return {};
}

}  // namespace

Result<ExpertWeights> load_experts(WeightLoader& w, const Architecture& row, const ExpertsSpec& spec, int64_t block) {
  ExpertWeights f;
  if (row.dense_beside_experts) {
    QUIRE_TRY(f.router, w.matrix_without_scale(kRouter, block));
  } else {
    QUIRE_TRY(f.router, w.matrix(kRouter, block));
  }
  if (row.any_router) {
    QUIRE_TRY(f.selection_bias, w.vector(kRouterSelectionBias, block));
  }
  QUIRE_CHECKED(load_matrices(w, row, block, f));
  if (spec.biases) {
    QUIRE_TRY(f.router_bias, w.vector(kRouterBias, block));
    QUIRE_TRY(f.gate_bias, w.vector(kExpertsGateBias, block));
    QUIRE_TRY(f.up_bias, w.vector(kExpertsUpBias, block));
    QUIRE_TRY(f.down_bias, w.vector(kExpertsDownBias, block));
  }
  if (spec.d_ff_shared == 0) return f;
  QUIRE_TRY(f.shared_gate, w.matrix(kSharedGate, block));
  QUIRE_TRY(f.shared_up, w.matrix(kSharedUp, block));
  QUIRE_TRY(f.shared_down, w.matrix(kSharedDown, block));
  if (row.shared_router) {
    QUIRE_TRY(f.shared_router, w.vector(kSharedRouter, block));
  }
  return f;
}

void lay_out_within(const ExpertsSpec& spec, ActivationMemory& mem) {
  mem.act(2, spec.token_width());
}

void expert_mlps(const LayerPass& pass, const ExpertsSpec& spec, const ExpertWeights& w, const Tensor& h,
                 const Tensor& router_h, const PartOutput& to) {
  ExpertChoice choice = spec.choice;
  choice.selection_bias = w.selection_bias;
  moe(pass.ctx, {.h = h,
                 .router_h = router_h,
                 .router = w.router,
                 .gate = w.gate,
                 .up = w.up,
                 .down = w.down,
                 .router_bias = w.router_bias,
                 .gate_bias = w.gate_bias,
                 .up_bias = w.up_bias,
                 .down_bias = w.down_bias,
                 .activation = spec.activation,
                 .top_k = spec.top_k,
                 .first_expert = spec.first,
                 .choice = choice,
                 .shared_gate = w.shared_gate,
                 .shared_up = w.shared_up,
                 .shared_down = w.shared_down,
                 .shared_router = w.shared_router,
                 .x = to.x,
                 .add_to_x = to.add,
                 .chosen = {},
                 .latency_rows = pass.latency_rows,
                 .rounded = pass.rounded});
}

}  // namespace quire
