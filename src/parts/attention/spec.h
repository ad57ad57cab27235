// Attention, to all positions before a token or to a window of them: what a model's is, read from metadata, and what it
// keeps in the caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cache/shape.h"
#include "core/result.h"
#include "parts/attention/rope.h"
#include "parts/mixer.h"

namespace quire {

// The heads that keys and values have in a layer.
struct HeadShape {
  int32_t kv_heads = 0, head_dim = 0;
  bool operator==(const HeadShape&) const = default;
};

struct AttentionSpec {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qk_norm = false;
  bool value_norm = false;  // every head of values is normalised, without weights
  bool sinks = false;
  bool gated_query = false;  // the query projection holds a gate for each head
  float scale = 0.0f;        // of scores: 1 / sqrt(head_dim), or what the file says
  RopeSpec rope;
  // Of layers that attend to a window (Mixer::kWindowAttention).
  int64_t window = 0;  // positions, a token's own among them; 0: the model has no such layers
  RopeSpec local_rope;
  HeadShape window_heads;        // empty: as in the other layers
  int32_t shared_kv_layers = 0;  // the last so many attend to the keys and values of others: kv_layer()

  // Only these values are computed today.
  float soft_cap = 0.0f;  // scores are cap * tanh(score / cap); 0: as they are
  bool causal = true;

  int64_t window_of(Mixer m) const { return m == Mixer::kWindowAttention ? window : 0; }
  HeadShape heads_of(Mixer m) const {
    const bool own = m == Mixer::kWindowAttention && window_heads.head_dim > 0;
    return own ? window_heads : HeadShape{kv_heads, head_dim};
  }
  // Elements of a token's queries, and of its keys, in the widest layer.
  int64_t query_width() const { return int64_t{heads} * std::max(head_dim, window_heads.head_dim); }
  int64_t kv_width() const {
    return std::max(int64_t{kv_heads} * head_dim, int64_t{window_heads.kv_heads} * window_heads.head_dim);
  }
  // Whether a layer projects keys and values of its own, for which the caches have memory.
  bool own_kv(const Mixers& layers, int64_t layer) const {
    return shared_kv_layers == 0 || layer < static_cast<int64_t>(layers.size()) - shared_kv_layers;
  }
  // Of a layer of attention, the layer whose keys and values it attends to: itself, or the last one of its kind that
  // has its own. -1: there is none.
  int32_t kv_layer(const Mixers& layers, int32_t layer) const;
  // Adds what the layers of a model keep, those that have keys and values of their own.
  void keep(const Mixers& layers, const CacheUse& use, CacheShape& caches) const;
  // The same of one more layer of a kind. `pool`: the window of the pool that layers with a window have their blocks
  // in; 0: in that of all others.
  void keep_layer(Mixer m, int64_t pool, CacheShape& caches) const;
};

struct Architecture;
class ModelKeys;

// Whether it is a tensor of keys or values, which a layer that attends to those of another one leaves out.
bool is_of_own_kv(TensorRole role);
// Which layers attend to a window.
Result<std::vector<bool>> read_windows(const ModelKeys& k, const Architecture& row);
// `context`: the trained one, which may become less (read_rope).
Result<AttentionSpec> read_attention(const ModelKeys& k, const Architecture& row, const Mixers& layers, int64_t d_model,
                                     int64_t& context);

}  // namespace quire
