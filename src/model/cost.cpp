#include "model/cost.h"

#include <cmath>
#include <optional>

#include "arch/tensors.h"
#include "model/memory.h"

namespace quire {
double ModelCost::decode_bytes(int sequences, double context) const {
  const double n = sequences;
  const double touched = 1 - std::pow(1 - routed_share, n);
  return always_bytes + touched * expert_bytes + n * (embedding_row_bytes + context * kv_token_bytes) +
         n * (state_bytes * (1 + 1.0 / kPendingTokens) + pending_bytes * (kPendingTokens / 2));
}

double ModelCost::prompt_flops(int64_t tokens) const {
  const auto n = static_cast<double>(tokens);
  const double params = always_params + routed_share * expert_params;
  return 2 * (n * params + head_params) + attention_flops * n * (n + 1) / 2 + delta_flops * n;
}

ModelCost model_cost(const gguf::File& file, const ModelConfig& c, const CacheShape& cache) {
  ModelCost cost;
  const bool tied = file.find_tensor(tensor_name(TensorRole::kOutput)) == nullptr;
  for (const gguf::TensorInfo& t : file.tensors()) {
    const std::optional<TensorId> id = find_tensor_spec(t.name);
    if (!id || id->spec->kind == TensorKind::kVector || id->block >= c.layers || c.leaves_out(id)) continue;
    const auto bytes = static_cast<double>(t.bytes), elems = static_cast<double>(t.elems());
    const TensorRole role = id->spec->role;
    if (id->spec->kind == TensorKind::kTable) cost.embedding_row_bytes += static_cast<double>(t.row_bytes());
    if (role == TensorRole::kOutput || (tied && role == TensorRole::kTokenEmbedding)) {
      cost.always_bytes += bytes;
      cost.head_params = elems;
    } else if (id->spec->kind == TensorKind::kExperts) {
      cost.expert_bytes += bytes;
      cost.expert_params += elems;
    } else if (id->spec->kind != TensorKind::kTable) {
      cost.always_bytes += bytes;
      cost.always_params += elems;
    }
  }
  if (c.experts.count > 0) cost.routed_share = static_cast<double>(c.experts.top_k) / c.experts.count;
  const CacheShape reads = cache_reads(c, cache);
  cost.kv_token_bytes = static_cast<double>(reads.pools().value_or(CachePools{{}})[kKvPool].bytes) / kBlockTokens;
  const DeltaCacheShape& d = cache.delta;
  const double delta_layers = d.layers, values = static_cast<double>(d.value_heads) * d.value_dim;
  cost.state_bytes = delta_layers * 4 * values * d.key_dim;
  cost.pending_bytes =
      delta_layers * (4 * values + 4 * d.value_heads +
                      static_cast<double>(dtype_bytes(cache.activation_dtype, int64_t{d.key_heads} * d.key_dim)));
  for (const AttentionCacheShape& run : reads.attention)
    cost.attention_flops += 4.0 * run.layers * c.attention.heads * run.head_dim;
  cost.delta_flops = 7.0 * delta_layers * values * d.key_dim;
  return cost;
}

}  // namespace quire
