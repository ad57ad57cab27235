// A layer's attention in a step: weights, intermediates, and the pass through it.
#pragma once

#include "parts/activations.h"
#include "parts/attention/spec.h"
#include "parts/pass.h"
#include "parts/weight_loader.h"

namespace quire {

// q holds H d rows, or 2 H d where the query is gated: of each head the query's rows, then the gate's. Empty is what a
// model has no tensor for.
struct AttentionWeights {
  Weight q, k, v, out;  // without v, values are what k projects to; without k, both are those of another layer
  Tensor q_bias, k_bias, v_bias, out_bias;
  Tensor q_norm, k_norm, v_norm;
  Tensor sinks;  // [H]

  static void visit(auto& w, auto& v) {
    for (auto* m : {&w.q, &w.k, &w.v, &w.out}) v.matrix(*m);
    for (auto* t : {&w.q_bias, &w.k_bias, &w.v_bias, &w.out_bias, &w.q_norm, &w.k_norm, &w.v_norm, &w.sinks})
      v.vector(*t);
  }
};

// `own_kv`: AttentionSpec::own_kv. The loader's sizes are those of the layer.
Result<AttentionWeights> load_attention(WeightLoader& w, const Architecture& row, const AttentionSpec& a, int64_t block,
                                        Mixer mixer, bool own_kv);

// Of layers of one kind: heads may be others where a layer attends to a window.
struct AttentionRows {
  Tensor q_proj, k_proj, v_proj;  // [T, H d] (gated: [T, 2 H d], query and gate per head), [T, Hkv d] twice
  Tensor q, gate;                 // [T, H, d]
  Tensor mix;                     // [T, H d]: the result before the last projection
};
struct AttentionActivations {
  AttentionRows all, window;  // in the same memory
  const AttentionRows& of(Mixer m) const { return m == Mixer::kWindowAttention ? window : all; }
};
// `mix`: memory of all kinds of mixers, of query_width() columns at least.
AttentionActivations lay_out(const AttentionSpec& a, ActivationMemory& mem, const Tensor& mix);

// What a layer reads besides.
struct AttentionContext {
  const KvLayer& kv;      // keys and values that it attends to; its own are written there
  SegmentArray segments;  // with the block tables of the pool that these are in
  const Rope& rope;
  int64_t window = 0;       // 0: all positions
  Tensor coordinates = {};  // [T, 3] i32: where rows stand for the rotation; empty: at their positions
  Tensor ends = {};         // [T] i32: PagedAttentionArgs::ends; empty: rows attend to what is before them
};
// From the normalised rows h.
void attention(const LayerPass& pass, const AttentionSpec& a, const AttentionWeights& w, const AttentionContext& c,
               const AttentionRows& r, const Tensor& h, const PartOutput& to);

}  // namespace quire
