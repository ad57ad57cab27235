#include "parts/dense/dense.h"

#include "ops/mlp/mlp.h"

namespace quire {

using enum TensorRole;

Result<DenseWeights> load_dense(WeightLoader& w, const Architecture& row, int64_t block) {
  DenseWeights f;
  if (row.fused_gate_up && !w.has(kFfnGate, block)) {
    QUIRE_TRY(const Weight fused, w.matrix(kFfnGateUp, block));
    const int64_t width = size_of(Extent::kFfn, w.sizes());
    f.gate = fused.row_slice(0, width);
    f.up = fused.row_slice(width, width);
  } else {
    QUIRE_TRY(f.gate, w.matrix(kFfnGate, block));
    QUIRE_TRY(f.up, w.matrix(kFfnUp, block));
  }
  QUIRE_TRY(f.down, w.matrix(kFfnDown, block));
  QUIRE_TRY(f.gate_bias, w.optional_vector(kFfnGateBias, block));
  QUIRE_TRY(f.up_bias, w.optional_vector(kFfnUpBias, block));
  QUIRE_TRY(f.down_bias, w.optional_vector(kFfnDownBias, block));
  return f;
}

void lay_out_within(const DenseSpec& spec, ActivationMemory& mem) {
  mem.act(2, spec.d_ff);
}

void dense_mlp(const LayerPass& pass, const DenseSpec& spec, const DenseWeights& w, const Tensor& h,
               const PartOutput& to) {
  swiglu_mlp(pass.ctx, {.h = h,
                        .gate = w.gate,
                        .up = w.up,
                        .down = w.down,
                        .gate_bias = w.gate_bias,
                        .up_bias = w.up_bias,
                        .down_bias = w.down_bias,
                        .x = to.x,
                        .add_to_x = to.add,
                        .activation = spec.activation,
                        .latency_rows = pass.latency_rows,
                        .rounded = pass.rounded});
}

}  // namespace quire
