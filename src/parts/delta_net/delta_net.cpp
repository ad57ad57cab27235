#include "parts/delta_net/delta_net.h"

#include "ops/linear/linear.h"

namespace quire {

using enum TensorRole;

namespace {

// beta and alpha in one: of each key head its value heads' rows of beta, then those of alpha.
Status load_packed_gates(WeightLoader& w, int64_t block, DeltaWeights& g) {
  const int64_t key_heads = w.sizes().key_heads, each = w.sizes().value_heads / key_heads;
  std::vector<int64_t> beta, alpha;
  for (int64_t head = 0; head < key_heads; ++head)
    for (int64_t r = 0; r < each; ++r) {
      beta.push_back(2 * head * each + r);
      alpha.push_back((2 * head + 1) * each + r);
    }
  QUIRE_TRY(g.beta, w.matrix_rows(kDeltaBetaAlpha, block, beta));
  QUIRE_TRY(g.alpha, w.matrix_rows(kDeltaBetaAlpha, block, alpha));
  return {};
}

}  // namespace

Result<DeltaWeights> load_delta(WeightLoader& w, const DeltaSpec& d, int64_t block) {
  DeltaWeights g;
  QUIRE_TRY(g.qkv, w.matrix(kDeltaQkv, block));
  QUIRE_TRY(g.z, w.matrix(kDeltaZ, block));
  if (d.grouped) {
    QUIRE_CHECKED(load_packed_gates(w, block, g));
  } else {
    QUIRE_TRY(g.alpha, w.matrix(kDeltaAlpha, block));
    QUIRE_TRY(g.beta, w.matrix(kDeltaBeta, block));
  }
  QUIRE_TRY(g.out, w.matrix(kDeltaOut, block));
  QUIRE_TRY(g.conv, w.vector(kDeltaConv, block));
  QUIRE_TRY(g.a, w.vector(kDeltaA, block));
  QUIRE_TRY(g.dt_bias, w.vector(kDeltaDtBias, block));
  QUIRE_TRY(g.norm, w.vector(kDeltaNorm, block));
  return g;
}

DeltaActivations lay_out(const DeltaSpec& d, ActivationMemory& mem, const Tensor& mix) {
  DeltaActivations s;
  s.mix = mix.cols(0, d.inner());
  s.qkv = mem.act(d.conv_channels());
  s.z = mem.act(d.inner());
  s.a = mem.f32(d.value_heads);
  s.b = mem.f32(d.value_heads);
  s.q = mem.act(d.key_heads, d.key_dim);
  s.k = mem.act(d.key_heads, d.key_dim);
  s.v = mem.act(d.value_heads, d.value_dim);
  s.g = mem.f32(d.value_heads);
  s.beta = mem.f32(d.value_heads);
  s.o = mem.act(d.value_heads, d.value_dim);
  return s;
}

void delta_net(const LayerPass& pass, const DeltaSpec& d, const DeltaWeights& w, const DeltaState& state,
               const SegmentArray& segments, const DeltaActivations& s, const Tensor& h, const PartOutput& to) {
  const LinearPart parts[] = {
      {.w = w.qkv, .y = s.qkv}, {.w = w.z, .y = s.z}, {.w = w.alpha, .y = s.a}, {.w = w.beta, .y = s.b}};
  linear(pass.ctx, {.x = h, .parts = parts, .latency_rows = pass.latency_rows, .rounded = pass.rounded});
  gated_delta_net(pass.ctx, {.qkv = s.qkv,
                             .z = s.z,
                             .a = s.a,
                             .b = s.b,
                             .conv_weight = w.conv,
                             .ssm_a = w.a,
                             .dt_bias = w.dt_bias,
                             .norm_weight = w.norm,
                             .eps = pass.eps,
                             .heads = d.grouped ? HeadMap::kGrouped : HeadMap::kTiled,
                             .cache = state,
                             .segments = segments,
                             .q = s.q,
                             .k = s.k,
                             .v = s.v,
                             .g = s.g,
                             .beta = s.beta,
                             .o = s.o,
                             .y = s.mix});
  pass.show("delta_out", s.o);
  pass.show("attn_mix", s.mix);
  linear(pass.ctx, {.x = s.mix,
                    .parts = {{.w = w.out, .y = to.x, .add_to_y = to.add}},
                    .latency_rows = pass.latency_rows,
                    .rounded = pass.rounded});
}

}  // namespace quire
