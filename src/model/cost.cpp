#include "model/cost.h"

#include <charconv>
#include <cmath>
#include <string_view>

namespace quire {
namespace {

// 12 for "blk.12.ffn_up.weight"; -1 outside the blocks.
int64_t block_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t block = -1;
  if (name.starts_with(kPrefix))
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), block);
  return block;
}

bool is_matrix(const gguf::TensorInfo& t) {
  return t.n_dims >= 2 && t.name.ends_with(".weight") && t.name.find("norm") == std::string_view::npos &&
         t.name.find("ssm_conv1d") == std::string_view::npos;
}

}  // namespace

double ModelCost::decode_bytes(int sequences, double context) const {
  const double n = sequences;
  const double touched = 1 - std::pow(1 - routed_share, n);
  return always_bytes + touched * expert_bytes + n * (embedding_row_bytes + context * kv_token_bytes) +
         n * (state_bytes * (1 + 1.0 / kWindowTokens) + window_bytes * (kWindowTokens / 2));
}

double ModelCost::prompt_flops(int64_t tokens) const {
  const auto n = static_cast<double>(tokens);
  const double params = always_params + routed_share * expert_params;
  return 2 * (n * params + head_params) + attention_flops * n * (n + 1) / 2 + delta_flops * n;
}

ModelCost model_cost(const gguf::File& file, const ModelConfig& c, const CacheShape& cache) {
  ModelCost cost;
  const bool tied = file.find_tensor("output.weight") == nullptr;
  for (const gguf::TensorInfo& t : file.tensors()) {
    if (!is_matrix(t) || block_of(t.name) >= c.layers) continue;
    const auto bytes = static_cast<double>(t.bytes), elems = static_cast<double>(t.elems());
    if (t.name == "token_embd.weight") cost.embedding_row_bytes = static_cast<double>(t.row_bytes());
    if (t.name == "output.weight" || (tied && t.name == "token_embd.weight")) {
      cost.always_bytes += bytes;
      cost.head_params = elems;
    } else if (t.name.find("_exps.") != std::string_view::npos) {
      cost.expert_bytes += bytes;
      cost.expert_params += elems;
    } else if (t.name != "token_embd.weight") {
      cost.always_bytes += bytes;
      cost.always_params += elems;
    }
  }
  if (c.experts > 0) cost.routed_share = static_cast<double>(c.top_k) / c.experts;
  cost.kv_token_bytes = static_cast<double>(cache.block_bytes().value_or(0)) / kBlockTokens;
  const double delta_layers = cache.delta_layers,
               values = static_cast<double>(cache.value_heads) * cache.value_dim;
  cost.state_bytes = delta_layers * 4 * values * cache.key_dim;
  cost.window_bytes =
      delta_layers *
      (4 * values + 4 * cache.value_heads +
       static_cast<double>(dtype_bytes(cache.activation_dtype, int64_t{cache.key_heads} * cache.key_dim)));
  cost.attention_flops = 4.0 * c.attention_layers() * c.heads * c.head_dim;
  cost.delta_flops = 7.0 * cache.delta_layers * cache.value_heads * cache.value_dim * cache.key_dim;
  return cost;
}

}  // namespace quire
