#include "model/memory.h"

#include <algorithm>

#include "model/activations.h"

namespace quire {

int64_t activation_row_bytes(const ModelConfig& c) {
  constexpr int64_t kRows = kChunkTokens;  // a multiple of what memory is rounded up to
  Workspace counting = counting_workspace();
  Workspace::Scope scope(counting);
  ActivationMemory mem(scope, DType::kBF16, kRows);
  lay_out(c, mem);
  const auto within = [&](const auto& spec) {
    Workspace::Scope part(counting);
    ActivationMemory of_part(part, DType::kBF16, kRows);
    lay_out_within(spec, of_part);
  };
  if (c.per_layer.width > 0) within(c.per_layer);
  if (c.experts.count > 0) within(c.experts);
  if (!c.experts.in_layer(0) || c.experts.beside_dense) within(c.dense);
  return counting.high_water() / kRows;
}

CacheShape cache_shape(const ModelConfig& c, DType activations, KvCacheType kv, const CacheUse& use) {
  CacheShape s;
  s.drafts = use.drafts;
  s.kv_dtype = kv_dtype(kv, activations);
  s.activation_dtype = activations;
  c.each_part([&](const auto& part) {
    if constexpr (requires { part.keep(c.mixers, use, s); }) part.keep(c.mixers, use, s);
  });
  return s;
}

CacheShape cache_reads(const ModelConfig& c, CacheShape cache) {
  const bool apart =
      std::ranges::any_of(cache.attention, [](const AttentionCacheShape& run) { return run.window > 0; });
  for (int32_t i = 0; i < c.layers; ++i)
    if (!c.own_kv(i)) c.attention.keep_layer(c.mixers[static_cast<size_t>(i)], apart ? c.attention.window : 0, cache);
  return cache;
}

CacheShape cache_part(const ModelConfig& c, CacheShape shape, LayerRange layers) {
  int32_t before = 0, of_part = 0, deltas = 0;
  for (int32_t i = 0; i < c.layers; ++i) {
    const bool delta = c.mixers[static_cast<size_t>(i)] == Mixer::kDelta, inside = layers.contains(i);
    deltas += delta && inside;
    if (delta || !c.own_kv(i)) continue;
    before += i < layers.first;
    of_part += inside;
  }
  const int32_t end = layers.end == c.layers ? shape.attention_layers() : before + of_part;
  int32_t at = 0;
  for (AttentionCacheShape& run : shape.attention) {
    const int32_t first = std::max(at, before), last = std::min(at + run.layers, end);
    at += run.layers;
    run.layers = std::max(0, last - first);
  }
  shape.delta.layers = deltas;
  return shape;
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
