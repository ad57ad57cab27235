// A layer's gated delta net in a step: weights, intermediates, and the pass through it.
// Sources: "Gated Delta Networks" (arXiv:2412.06464), the Qwen3-Next and Qwen3.5 model definitions.
#pragma once

#include "ops/gated_delta/gated_delta.h"
#include "parts/activations.h"
#include "parts/delta_net/spec.h"
#include "parts/pass.h"
#include "parts/weight_loader.h"

namespace quire {

struct DeltaWeights {
  Weight qkv, z, alpha, beta, out;
  Tensor conv, a, dt_bias, norm;

  static void visit(auto& w, auto& v) {
    for (auto* m : {&w.qkv, &w.z, &w.alpha, &w.beta, &w.out}) v.matrix(*m);
    for (auto* t : {&w.conv, &w.a, &w.dt_bias, &w.norm}) v.vector(*t);
  }
};
Result<DeltaWeights> load_delta(WeightLoader& w, const DeltaSpec& d, int64_t block);

struct DeltaActivations {
  Tensor qkv, z;   // projections: [T, C], [T, Hv Dv]
  Tensor a, b;     // [T, Hv] f32
  Tensor q, k, v;  // [T, Hk, Dk], [T, Hk, Dk], [T, Hv, Dv]
  Tensor g, beta;  // [T, Hv] f32
  Tensor o;        // [T, Hv, Dv] before the gated norm
  Tensor mix;      // [T, Hv Dv]: the result before the last projection
};
// `mix`: memory of all kinds of mixers, of inner() columns at least.
DeltaActivations lay_out(const DeltaSpec& d, ActivationMemory& mem, const Tensor& mix);

// From the normalised rows h.
void delta_net(const LayerPass& pass, const DeltaSpec& d, const DeltaWeights& w, const DeltaState& state,
               const SegmentArray& segments, const DeltaActivations& s, const Tensor& h, const PartOutput& to);

}  // namespace quire
