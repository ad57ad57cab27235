#include "parts/attention/spec.h"

#include <algorithm>
#include <cmath>

#include "parts/keys.h"

namespace quire {
namespace {

// Files may give KV heads once or per block. Those of layers without keys and values, often 0, say nothing.
Status read_kv_heads(const ModelKeys& k, const Architecture& row, const Mixers& layers, AttentionSpec& a) {
  constexpr std::string_view kKey = "attention.head_count_kv";
  std::vector<uint32_t> all(static_cast<size_t>(k.blocks()), static_cast<uint32_t>(a.heads));
  if (k.has(kKey)) {
    QUIRE_TRY(all, k.file().get_u32_per_layer(k.full(kKey), k.blocks()));
  }
  int64_t of_all = 0, of_window = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == Mixer::kDelta || !a.own_kv(layers, static_cast<int64_t>(i))) continue;
    int64_t& kv = row.own_window_heads && layers[i] == Mixer::kWindowAttention ? of_window : of_all;
    if (all[i] == 0) return file_error("{}: 0 KV heads in block {}, which is one of attention", k.full(kKey), i);
    if (kv != 0 && all[i] != kv) return file_error("{}: differs between blocks, which is not supported", k.full(kKey));
    kv = all[i];
  }
  if (of_all == 0) of_all = of_window > 0 ? of_window : a.heads;  // no layer attends to all
  for (const int64_t kv : {of_all, std::max(of_window, int64_t{1})})
    if (a.heads % kv != 0) return file_error("{}: {} heads cannot share {} KV heads", k.full(kKey), a.heads, kv);
  a.kv_heads = static_cast<int32_t>(of_all);
  a.window_heads.kv_heads = static_cast<int32_t>(of_window);
  return {};
}

// How many elements a head has; keys and values must have the same number.
Status read_head_dim(const ModelKeys& k, std::string_view of_layers, int64_t absent, int32_t& out) {
  const std::string key = fmt::format("attention.key_length{}", of_layers);
  const std::string value = fmt::format("attention.value_length{}", of_layers);
  int32_t value_dim = 0;
  QUIRE_CHECKED(k.number32_or(key, absent, 2, kMaxHeadDim, out));
  QUIRE_CHECKED(k.number32_or(value, out, 2, kMaxHeadDim, value_dim));
  if (value_dim == out && out % 2 == 0) return {};
  return file_error("{}: keys of {} and values of {} elements are not supported (must be equal and even)",
                    k.full(value), out, value_dim);
}

// Whether any block has a norm of queries or keys.
bool has_qk_norms(const gguf::File& file, int64_t blocks) {
  for (int64_t i = 0; i < blocks; ++i)
    for (const TensorRole role : {TensorRole::kAttnQNorm, TensorRole::kAttnKNorm})
      if (file.find_tensor(tensor_name(role, i)) != nullptr) return true;
  return false;
}

Status read_score_scale(const ModelKeys& k, const Architecture& row, int64_t d_model, AttentionSpec& a) {
  constexpr std::string_view kKey = "attention.scale";
  const float own =
      row.score_scale > 0 ? static_cast<float>(row.score_scale) : 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  float said = 0.0f;
  QUIRE_CHECKED(k.real(kKey, said));
  a.scale = own;
  if (said == 0 && row.hidden_scaled_layers > 0 && k.layers() == row.hidden_scaled_layers)
    a.scale = 1.0f / std::sqrt(static_cast<float>(d_model) / static_cast<float>(a.heads));
  if (said == 0 || std::fabs(said - own) <= 1e-5f * own) return {};
  if (!row.scaled_scores) return k.unsupported(kKey, fmt::format("another scale of attention than {} is", own));
  if (!(said > 0) || !std::isfinite(said)) return file_error("{}: {} is not positive", k.full(kKey), said);
  a.scale = said;
  return {};
}

// How many of the last layers attend to keys and values of others. There must be some that they can be those of.
Status read_shared_kv(const ModelKeys& k, const Architecture& row, const Mixers& layers, AttentionSpec& a) {
  constexpr std::string_view kKey = "attention.shared_kv_layers";
  QUIRE_CHECKED(k.number32_or(kKey, 0, 0, k.layers() - 1, a.shared_kv_layers));
  if (a.shared_kv_layers == 0) return {};
  if (!row.shared_kv) return k.unsupported(kKey, "layers that read the keys and values of others are");
  for (int32_t i = k.layers() - a.shared_kv_layers; i < k.layers(); ++i)
    if (a.kv_layer(layers, i) < 0)
      return file_error("{}: block {} is one of {} without keys and values, and no block before these {} a window",
                        k.full(kKey), i, a.shared_kv_layers,
                        layers[static_cast<size_t>(i)] == Mixer::kWindowAttention ? "has" : "is without");
  return {};
}

// What the fields that are there for other models must be.
Status check_supported(const ModelKeys& k, const Architecture& row, int64_t context, const AttentionSpec& a) {
  // A window that no position of the context looks beyond is none.
  if (row.window_interval == 0 && a.window != 0 && a.window < context)
    return k.unsupported("attention.sliding_window", "sliding windows are");
  if (a.soft_cap != 0) return k.unsupported("attn_logit_softcapping", "soft caps of attention are");
  return a.causal ? Status() : k.unsupported("attention.causal", "attention to later positions is");
}

}  // namespace

int32_t AttentionSpec::kv_layer(const Mixers& layers, int32_t layer) const {
  const Mixer kind = layers[static_cast<size_t>(layer)];
  while (layer >= 0 && (!own_kv(layers, layer) || layers[static_cast<size_t>(layer)] != kind)) --layer;
  return layer;
}

bool is_of_own_kv(TensorRole role) {
  using enum TensorRole;
  return role == kAttnK || role == kAttnKBias || role == kAttnKNorm || role == kAttnV || role == kAttnVBias;
}

void AttentionSpec::keep(const Mixers& layers, const CacheUse& use, CacheShape& caches) const {
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i] != Mixer::kDelta && own_kv(layers, static_cast<int64_t>(i)))
      keep_layer(layers[i], use.window, caches);
  if (use.mtp) keep_layer(Mixer::kAttention, 0, caches);
}

void AttentionSpec::keep_layer(Mixer m, int64_t pool, CacheShape& caches) const {
  const HeadShape shape = heads_of(m);
  caches.add_attention(1, shape.kv_heads, shape.head_dim, m == Mixer::kWindowAttention ? pool : 0);
}

Result<std::vector<bool>> read_windows(const ModelKeys& k, const Architecture& row) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  std::vector<bool> windows(static_cast<size_t>(k.layers()));
  if (row.window_interval == 0 || !k.has("attention.sliding_window")) return windows;
  // A list says which, or it is every layer but each interval-th.
  if (const gguf::Value* const v = k.file().find(k.full(kKey)); v != nullptr && v->is_array) {
    QUIRE_TRY(windows, k.file().get_bool_per_layer(k.full(kKey), k.blocks()));
    windows.resize(static_cast<size_t>(k.layers()));
    return windows;
  }
  int64_t interval = row.window_interval;
  QUIRE_CHECKED(k.number_or(kKey, row.window_interval, 1, kMaxBlocks, interval));
  for (size_t i = 0; i < windows.size(); ++i) windows[i] = (static_cast<int64_t>(i) + 1) % interval != 0;
  return windows;
}

Result<AttentionSpec> read_attention(const ModelKeys& k, const Architecture& row, const Mixers& layers, int64_t d_model,
                                     int64_t& context) {
  AttentionSpec a;
  QUIRE_CHECKED(read_shared_kv(k, row, layers, a));
  a.qk_norm =
      row.qk_norm == Presence::kAlways || (row.qk_norm == Presence::kMaybe && has_qk_norms(k.file(), k.layers()));
  a.gated_query = row.gated_query;
  a.value_norm = row.value_norm;
  a.sinks = row.sinks;
  int64_t heads = 0;
  QUIRE_CHECKED(k.uniform("attention.head_count", 1, kMaxHeads, heads));
  a.heads = static_cast<int32_t>(heads);
  QUIRE_CHECKED(read_kv_heads(k, row, layers, a));
  QUIRE_CHECKED(read_head_dim(k, "", d_model / heads, a.head_dim));
  if (a.window_heads.kv_heads > 0) QUIRE_CHECKED(read_head_dim(k, "_swa", a.head_dim, a.window_heads.head_dim));
  QUIRE_CHECKED(k.number_or("attention.sliding_window", 0, 0, UINT32_MAX, a.window));
  QUIRE_CHECKED(k.real("attn_logit_softcapping", a.soft_cap));
  QUIRE_CHECKED(read_score_scale(k, row, d_model, a));
  QUIRE_TRY(a.causal, k.file().get_bool_or(k.full("attention.causal"), true));
  QUIRE_CHECKED(read_rope(k, row, a.head_dim, context, a.rope));
  a.local_rope = a.rope;
  QUIRE_CHECKED(read_local_rope(k, row, a.heads_of(Mixer::kWindowAttention).head_dim, a.local_rope));
  QUIRE_CHECKED(check_supported(k, row, context, a));
  return a;
}

}  // namespace quire
