// The intermediates of a step: the decoder's own, and those of each kind of part that a model has.
#pragma once

#include "model/config.h"
#include "model/step.h"
#include "parts/attention/attention.h"
#include "parts/delta_net/delta_net.h"
#include "parts/experts/beside_dense.h"
#include "parts/per_layer/per_layer.h"

namespace quire {

// Those of a kind of part that the model has not are empty.
struct Activations {
  Tensor x;  // [T, D] f32 residual stream
  Tensor h;  // [T, D] normalised input of a sub-block
  // Where what a part adds is normalised first: before and after that.
  Tensor part, normed;  // [T, D] f32
  Tensor partials[2];   // [T, D] f32, where ranks share the model: what its parts put out, in turns
  AttentionActivations attention;
  DeltaActivations delta;
  ParallelActivations parallel;
  PerLayerActivations per_layer;
};
// `stream`: where parts of a model leave it to each other.
Activations lay_out(const ModelConfig& c, ActivationMemory& mem, const StreamRows& stream = {});

}  // namespace quire
