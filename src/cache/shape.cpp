#include "cache/shape.h"

#include <algorithm>
#include <bit>

#include "cache/byte_sum.h"
#include "core/result.h"
#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire {
namespace {

std::vector<CachePart> parts_of(const CacheShape& s, const AttentionCacheShape& run) {
  const CachePart part{s.kv_dtype, {run.kv_heads, kv_head_elems(s.kv_dtype, run.head_dim)}};
  return {part, part};
}
std::vector<CachePart> parts_of(const CacheShape& s, const DeltaCacheShape& n) {
  return {{DType::kF32, {n.value_heads, n.value_dim, n.key_dim}},
          {DType::kF32, {s.pending_tokens(), n.value_heads, n.value_dim}},
          {DType::kF32, {s.pending_tokens(), n.value_heads}},
          {s.activation_dtype, {s.pending_tokens(), n.key_heads, n.key_dim}},
          {s.activation_dtype, {s.ring(), n.conv_channels}}};
}

// The windows that layers of a shape have blocks for, in ascending order.
std::vector<int64_t> windows_of(const CacheShape& s) {
  std::vector<int64_t> windows;
  for (const AttentionCacheShape& run : s.attention)
    if (run.window > 0) windows.push_back(run.window);
  std::ranges::sort(windows);
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  return windows;
}

}  // namespace

int32_t CacheShape::pending_tokens() const {
  return kPendingTokens + 2 * drafts;
}

int32_t CacheShape::ring() const {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(delta.conv_taps + 1 + drafts)));
}

std::vector<CacheLayers> CacheShape::in_pools() const {
  const std::vector<int64_t> windows = windows_of(*this);
  std::vector<CacheLayers> all;
  for (const AttentionCacheShape& run : attention) {
    const auto window = static_cast<int>(std::ranges::find(windows, run.window) - windows.begin());
    all.push_back({run.window > 0 ? 1 + window : kKvPool, run.layers, parts_of(*this, run)});
  }
  if (has_state()) all.push_back({1 + static_cast<int>(windows.size()), delta.layers, parts_of(*this, delta)});
  return all;
}

int32_t CacheShape::attention_layers() const {
  int32_t layers = 0;
  for (const AttentionCacheShape& run : attention) layers += run.layers;
  return layers;
}

void CacheShape::add_attention(int32_t layers, int32_t kv_heads, int32_t head_dim, int64_t window) {
  if (layers == 0) return;
  AttentionCacheShape* const last = attention.empty() ? nullptr : &attention.back();
  if (last != nullptr && last->kv_heads == kv_heads && last->head_dim == head_dim && last->window == window)
    last->layers += layers;
  else
    attention.push_back({.layers = layers, .kv_heads = kv_heads, .head_dim = head_dim, .window = window});
}

std::optional<CachePools> CacheShape::pools() const {
  CachePools pools = {{.name = "kv"}};
  const std::vector<int64_t> windows = windows_of(*this);
  for (const int64_t w : windows)
    pools.push_back({.name = windows.size() == 1 ? "window" : fmt::format("window_{}", w), .window = w});
  if (has_state()) pools.push_back({.name = "state", .unit = CachePoolSpec::Unit::kSequence});
  QUIRE_CHECK(pools.size() <= kMostPools, "{} kinds of cache: at most {} are known", pools.size(), kMostPools);
  std::vector<CacheBytes> units(pools.size());
  for (const CacheLayers& l : in_pools()) {
    CacheBytes layer;
    for (const CachePart& part : l.parts) layer.add(part.dtype, part.dims);
    if (!layer.sum()) return std::nullopt;
    units[static_cast<size_t>(l.pool)].add_bytes(*layer.sum(), l.count);
  }
  for (size_t i = 0; i < pools.size(); ++i) {
    if (!units[i].sum()) return std::nullopt;
    pools[i].bytes = *units[i].sum();
  }
  return pools;
}

PoolCounts CacheShape::counts(int32_t blocks, int32_t sequences) const {
  PoolCounts all(1 + windows_of(*this).size(), blocks);
  if (has_state()) all.push_back(sequences);
  return all;
}

}  // namespace quire
