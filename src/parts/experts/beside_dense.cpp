#include "parts/experts/beside_dense.h"

#include <cmath>

#include "ops/norm/norm.h"
#include "ops/rows/rows.h"
#include "parts/rank_sums.h"

namespace quire {

Result<ParallelWeights> load_parallel(WeightLoader& w, const Architecture& row, const ExpertsSpec& experts,
                                      int64_t block) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(w.sizes().d_model));
  ParallelWeights f;
  QUIRE_TRY(f.dense, load_dense(w, row, block));
  QUIRE_TRY(f.dense_out_norm, w.vector(TensorRole::kPostDenseNorm, block));
  QUIRE_TRY(f.router_norm, w.scaled_vector(TensorRole::kRouterScale, block, scale));
  QUIRE_TRY(f.experts_norm, w.vector(TensorRole::kExpertsNorm, block));
  QUIRE_TRY(f.experts, load_experts(w, row, experts, block));
  QUIRE_TRY(f.experts_out_norm, w.vector(TensorRole::kPostExpertsNorm, block));
  return f;
}

ParallelActivations lay_out_parallel(int64_t d_model, ActivationMemory& mem) {
  ParallelActivations s;
  s.router_h = mem.act(d_model);
  s.both = make_tensor(mem.f32(2 * d_model).data, DType::kF32, {2, mem.rows(), d_model});
  return s;
}

void parallel_mlps(const LayerPass& pass, const DenseSpec& dense, const ExpertsSpec& experts, const ParallelWeights& w,
                   const ParallelActivations& s, const Tensor& x, const Tensor& h, const Tensor& out) {
  const auto normed = [&](const Tensor& from, const Tensor& norm, const Tensor& to) {
    add_rms_norm(pass.ctx, {.x = from, .add = {}, .weight = norm, .eps = pass.eps, .h = to});
  };
  // What was put out, normalised: of several ranks their sum.
  const auto finish = [&](const Tensor& norm, const Tensor& to) {
    pass.ranks == nullptr ? normed(out, norm, to) : pass.ranks->sum(pass, out, false, norm, to);
  };
  const int64_t rows = x.dim(0), d = x.dim(1);
  const auto result = [&](int64_t i) { return make_tensor(s.both.as<float>() + i * rows * d, {rows, d}); };
  const PartOutput to = pass.ranks == nullptr ? PartOutput{out, false} : pass.ranks->next();
  dense_mlp(pass, dense, w.dense, h, to);
  finish(w.dense_out_norm, result(0));
  normed(x, w.router_norm, s.router_h);
  normed(x, w.experts_norm, h);
  pass.show("router_norm", s.router_h);
  pass.show("experts_norm", h);
  expert_mlps(pass, experts, w.experts, h, s.router_h, pass.ranks == nullptr ? to : pass.ranks->next());
  finish(w.experts_out_norm, result(1));
  reduce_partials(pass.ctx, {.partials = s.both, .x = out, .add_to_x = false});
}

}  // namespace quire
