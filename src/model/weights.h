// The weights of a layer: those of its parts, and the norms around them.
#pragma once

#include <variant>

#include "model/config.h"
#include "parts/attention/attention.h"
#include "parts/delta_net/delta_net.h"
#include "parts/dense/dense.h"
#include "parts/experts/beside_dense.h"
#include "parts/experts/experts.h"
#include "parts/per_layer/per_layer.h"
#include "parts/weight_visitor.h"

namespace quire {

struct LayerWeights {
  Tensor mixer_norm;  // before attention or delta net
  std::variant<AttentionWeights, DeltaWeights> mixer;
  Tensor mixer_out_norm;  // of what the mixer adds to the residual stream; empty: it is added as it is
  Tensor ffn_norm;        // before the feed-forward
  std::variant<DenseWeights, ExpertWeights, ParallelWeights> ffn;
  Tensor ffn_out_norm;  // as mixer_out_norm
  PerLayerWeights per_layer;
  float out_scale = 1;  // of the residual stream behind all of these

  // Shows everything of `l`, constant or not, in the order of use.
  static void visit(auto& l, auto& v) {
    const auto part = [&](auto& w) { w.visit(w, v); };
    v.vector(l.mixer_norm);
    std::visit(part, l.mixer);
    v.vector(l.mixer_out_norm);
    v.vector(l.ffn_norm);
    std::visit(part, l.ffn);
    v.vector(l.ffn_out_norm);
    part(l.per_layer);
  }
};

// `row`: of the configuration's architecture. `block` counts from 0, and may be that of a multi-token-prediction block.
Result<LayerWeights> load_layer(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block,
                                Mixer mixer);

}  // namespace quire
