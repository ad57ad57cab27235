#include "model/memory.h"

#include <algorithm>

namespace quire {

int64_t activation_row_bytes(const ModelConfig& c) {
  const int64_t q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
  int64_t elems = c.d_model + 2 * q + 2 * kv;  // h, projected and rotated q, k, v
  int64_t mix = q, floats = c.d_model;
  if (c.hybrid) {
    const int64_t inner = int64_t{c.delta.value_heads} * c.delta.value_dim;
    mix = std::max(q, inner);
    elems += 2 * q;                                    // the gate, projected and split off
    elems += 2 * c.delta.conv_channels() + 2 * inner;  // before and after the convolution; z, o
    floats += 4 * c.delta.value_heads;
  }
  const int64_t ffn = c.experts > 0 ? int64_t{c.top_k} * c.d_ff_expert + c.d_ff_shared : c.d_ff;
  return 2 * (elems + mix + 2 * ffn) + 4 * floats;
}

CacheShape cache_shape(const ModelConfig& c, DType activations, KvCacheType kv) {
  CacheShape s;
  s.attention_layers = c.attention_layers();
  s.kv_heads = c.kv_heads;
  s.head_dim = c.head_dim;
  s.kv_dtype = kv_dtype(kv, activations);
  s.activation_dtype = activations;
  if (c.hybrid) {
    s.delta_layers = c.delta_layers();
    s.conv_taps = c.delta.conv_kernel - 1;
    s.conv_channels = c.delta.conv_channels();
    s.value_heads = c.delta.value_heads;
    s.value_dim = c.delta.value_dim;
    s.key_heads = c.delta.key_heads;
    s.key_dim = c.delta.key_dim;
  }
  return s;
}

Result<MemoryEstimate> estimate_memory(const gguf::File& file, const ModelConfig& c, int64_t context,
                                       int64_t sequences, int64_t batch_tokens) {
  if (context < 1 || sequences < 1 || batch_tokens < 1)
    return request_error("context, sequences and batch tokens must be at least 1, not {}, {} and {}", context,
                         sequences, batch_tokens);
  const CacheShape cache = cache_shape(c, DType::kBF16);
  MemoryEstimate m;
  m.weights = static_cast<int64_t>(file.mapped_bytes());
  const int64_t blocks = context / kBlockTokens + (context % kBlockTokens != 0);
  int64_t steps = 0, logits = 0, sum = m.weights;
  const std::optional<int64_t> block = cache.block_bytes(), state = cache.state_bytes();
  const bool overflow =
      !block || !state || __builtin_mul_overflow(blocks, *block, &m.kv) ||
      __builtin_mul_overflow(m.kv, sequences, &m.kv) ||
      __builtin_mul_overflow(*state, sequences, &m.states) ||
      __builtin_mul_overflow(activation_row_bytes(c), batch_tokens, &steps) ||
      __builtin_mul_overflow(4 * c.vocab, sequences, &logits) ||
      __builtin_add_overflow(steps, logits, &m.activations) || __builtin_add_overflow(sum, m.kv, &sum) ||
      __builtin_add_overflow(sum, m.states, &sum) || __builtin_add_overflow(sum, m.activations, &sum);
  if (overflow)
    return request_error("{} sequences of {} tokens need more memory than can be counted", sequences,
                         context);
  return m;
}

}  // namespace quire
