// Experts that a router chooses from for each token, maybe with one that all share, or a dense feed-forward beside
// them: what a model's are, read from metadata.
#pragma once

#include <cstdint>

#include "core/result.h"
#include "ops/moe/moe.h"
#include "parts/dense/spec.h"

namespace quire {

struct ExpertsSpec {
  int32_t count = 0;         // 0: the feed-forwards of all layers are dense
  int32_t first = 0;         // of a rank that has some of them whole: the first of these
  int32_t dense_layers = 0;  // the first so many are dense, though the others have experts
  int32_t top_k = 0;
  int64_t d_ff = 0;           // of an expert
  int64_t d_ff_shared = 0;    // 0: no shared expert
  bool beside_dense = false;  // each layer has a dense feed-forward as well, with norms of its own
  bool biases = false;        // router and experts have them
  GateActivation activation = GateActivation::kSilu;
  ExpertChoice choice;  // without its tensors

  // Whether it is a layer of experts.
  bool in_layer(int64_t block) const { return count > 0 && block >= dense_layers; }
  // What those of one token put out.
  int64_t token_width() const { return int64_t{top_k} * d_ff + d_ff_shared; }
};

// 0: the model has none.
Result<int32_t> read_expert_count(const ModelKeys& k, const Architecture& row);
// Of a model that has so many. `dense`: the model's, which their width may follow from.
Result<ExpertsSpec> read_experts(const ModelKeys& k, const Architecture& row, int32_t count, const DenseSpec& dense);

}  // namespace quire
