// What a step must move and compute at least: the numerators of a benchmark's shares of the machine's limits.
#pragma once

#include <cstdint>

#include "cache/shape.h"
#include "gguf/reader.h"
#include "model/config.h"

namespace quire {

// Counted from a file's tensors and the model's shape. Only matrices, caches and states count; norms,
// activations and the sampler's work are small beside them.
struct ModelCost {
  // Bytes of matrices.
  double always_bytes = 0;         // read once in every step: projections, dense and shared FFN, router, head
  double expert_bytes = 0;         // of all routed experts of all layers
  double embedding_row_bytes = 0;  // one token's row of the embedding, and of those that layers have of their own
  // Elements of matrices that take part in a product with every token.
  double always_params = 0;    // without the head
  double expert_params = 0;    // of all routed experts
  double head_params = 0;      // taken only for tokens whose logits are wanted
  double routed_share = 0;     // top_k / experts
  double kv_token_bytes = 0;   // keys and values of one position, read by all attention layers
  double state_bytes = 0;      // recurrent states S0 of one sequence, all delta-net layers
  double pending_bytes = 0;    // of one pending token beside them
  double attention_flops = 0;  // for each (query, key) pair, all attention layers: 4 H d
  double delta_flops = 0;      // of the delta rule for each token, all delta-net layers: 7 Hv Dv Dk

  // Bytes of one decode step of `sequences` sequences with `context` positions each in their caches: each
  // matrix once, of the experts the share that so many tokens choose if they choose independently and
  // uniformly, keys and values read, states read and every 16th token written, half of the pending tokens read.
  double decode_bytes(int sequences, double context) const;

  // Operations for a prompt of `tokens` tokens from an empty cache, with logits for the last only.
  double prompt_flops(int64_t tokens) const;
};

// `cache`: the model's. Multi-token-prediction blocks do not count.
ModelCost model_cost(const gguf::File& file, const ModelConfig& c, const CacheShape& cache);

}  // namespace quire
