#include "model/memory.h"

#include <algorithm>

namespace quire {

int64_t activation_row_bytes(const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  const HeadShape all = c.heads_of(Mixer::kAttention), window = c.heads_of(Mixer::kWindowAttention);
  const int64_t q = int64_t{a.heads} * std::max(all.head_dim, window.head_dim);
  const int64_t kv = std::max(int64_t{all.kv_heads} * all.head_dim, int64_t{window.kv_heads} * window.head_dim);
  int64_t elems = c.d_model + 2 * q + 2 * kv;  // h, projected and rotated q, k, v
  int64_t mix = q, floats = c.d_model;
  if (c.norms_after) floats += 2 * c.d_model;
  if (c.d_per_layer > 0) {  // of all layers, and once more while they are made; of one layer, twice
    floats += 2 * c.layers * c.d_per_layer + c.d_per_layer;
    elems += c.d_per_layer;
  }
  if (a.gated_query) elems += 2 * q;  // the gate, projected and split off
  if (c.has_state()) {
    const int64_t inner = int64_t{c.delta.value_heads} * c.delta.value_dim;
    mix = std::max(q, inner);
    elems += 2 * c.delta.conv_channels() + 2 * inner;  // before and after the convolution; z, o
    floats += 4 * c.delta.value_heads;
  }
  const FeedForwardSpec& f = c.ffn;
  const int64_t experts = f.experts > 0 ? int64_t{f.top_k} * f.d_ff_expert + f.d_ff_shared : 0;
  if (f.beside_experts) elems += c.d_model, floats += 2 * c.d_model;
  const int64_t ffn = f.dense(0) || f.beside_experts ? std::max(f.d_ff, experts) : experts;
  return 2 * (elems + mix + 2 * ffn) + 4 * floats;
}

CacheShape cache_shape(const ModelConfig& c, DType activations, KvCacheType kv, const CacheUse& use) {
  CacheShape s;
  s.drafts = use.drafts;
  const auto add_layers = [&](int32_t layers, Mixer m) {
    const HeadShape heads = c.heads_of(m);
    s.add_attention(layers, heads.kv_heads, heads.head_dim, m == Mixer::kWindowAttention ? use.window : 0);
  };
  for (size_t i = 0; i < c.mixers.size(); ++i)
    add_layers(c.mixers[i] != Mixer::kDelta && c.own_kv(static_cast<int64_t>(i)) ? 1 : 0, c.mixers[i]);
  add_layers(use.mtp ? 1 : 0, Mixer::kAttention);
  s.kv_dtype = kv_dtype(kv, activations);
  s.activation_dtype = activations;
  if (c.has_state())
    s.delta = {.layers = c.delta_layers(),
               .conv_taps = c.delta.conv_kernel - 1,
               .conv_channels = c.delta.conv_channels(),
               .value_heads = c.delta.value_heads,
               .value_dim = c.delta.value_dim,
               .key_heads = c.delta.key_heads,
               .key_dim = c.delta.key_dim};
  return s;
}

CacheShape cache_reads(const ModelConfig& c, CacheShape cache) {
  const bool apart =
      std::ranges::any_of(cache.attention, [](const AttentionCacheShape& run) { return run.window > 0; });
  for (int32_t i = 0; i < c.layers; ++i) {
    if (c.own_kv(i)) continue;
    const Mixer m = c.mixers[static_cast<size_t>(i)];
    const HeadShape heads = c.heads_of(m);
    cache.add_attention(1, heads.kv_heads, heads.head_dim,
                        apart && m == Mixer::kWindowAttention ? c.attention.window : 0);
  }
  return cache;
}

int64_t pool_window(const ModelConfig& c, int64_t context) {
  return c.has_windows() && context > c.attention.window ? c.attention.window : 0;
}

Result<MemoryEstimate> estimate_memory(const gguf::File& file, const ModelConfig& c, int64_t context, int64_t sequences,
                                       int64_t batch_tokens) {
  if (context < 1 || sequences < 1 || batch_tokens < 1)
    return request_error("context, sequences and batch tokens must be at least 1, not {}, {} and {}", context,
                         sequences, batch_tokens);
  const CacheShape cache = cache_shape(c, DType::kBF16, KvCacheType::kAuto, {.window = pool_window(c, context)});
  MemoryEstimate m;
  m.weights = static_cast<int64_t>(file.mapped_bytes());
  const int64_t blocks = context / kBlockTokens + (context % kBlockTokens != 0);
  int64_t steps = 0, logits = 0, sum = m.weights;
  const std::optional<CachePools> pools = cache.pools();
  bool overflow = !pools;
  for (const CachePoolSpec& pool : pools.value_or(CachePools{})) {
    const bool window = pool.is_window();
    const int64_t in_step = window ? batch_tokens / kBlockTokens : 0,
                  each = pool.unit == CachePoolSpec::Unit::kSequence ? 1
                         : window ? std::min(blocks, most_window_blocks(pool.window, 0))
                                  : blocks;
    int64_t units = 0, bytes = 0;
    overflow = overflow || __builtin_mul_overflow(each, sequences, &units) ||
               __builtin_add_overflow(units, in_step, &units) || __builtin_mul_overflow(pool.bytes, units, &bytes) ||
               __builtin_add_overflow(sum, bytes, &sum);
    m.caches.push_back({pool, bytes});
  }
  overflow = overflow || __builtin_mul_overflow(activation_row_bytes(c), batch_tokens, &steps) ||
             __builtin_mul_overflow(4 * c.vocab, sequences, &logits) ||
             __builtin_add_overflow(steps, logits, &m.activations) || __builtin_add_overflow(sum, m.activations, &sum);
  if (overflow)
    return request_error("{} sequences of {} tokens need more memory than can be counted", sequences, context);
  return m;
}

}  // namespace quire
