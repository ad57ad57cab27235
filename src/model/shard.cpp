#include "model/shard.h"

#include <algorithm>

namespace quire {
namespace {

// Of a layer. What no layer has is nobody's obstacle: files may give numbers of feed-forwards that there are none of.
ModelSizes layer_sizes(const ModelConfig& c, int64_t layer) {
  const Mixer mixer = c.mixers[static_cast<size_t>(layer)];
  ModelSizes m = c.layer_sizes(layer, mixer);
  if (c.experts.in_layer(layer) && !c.experts.beside_dense) m.d_ff = 0;
  if (!c.experts.in_layer(layer)) m.experts = m.d_ff_expert = m.d_ff_shared = 0;
  return m;
}

}  // namespace

Shard::Grains share_grains(const gguf::File& file) {
  Shard::Grains grains;
  for (const gguf::TensorInfo& t : file.tensors()) {
    const std::optional<TensorId> id = find_tensor_spec(t.name);
    if (!id || tensor_share(id->spec->role).division != Division::kColumns) continue;
    const int64_t block = dtype_info(t.dtype).block_elems;
    if (id->spec->cols == Extent::kFfn) grains.ffn = std::max(grains.ffn, block);
    if (id->spec->cols == Extent::kExpertFfn) grains.expert_ffn = std::max(grains.expert_ffn, block);
    if (id->spec->cols == Extent::kSharedFfn) grains.shared_ffn = std::max(grains.shared_ffn, block);
  }
  return grains;
}

Status check_shares(const ModelConfig& whole, const Shard& s) {
  for (int64_t i = 0; i < whole.layers; ++i) QUIRE_CHECKED(check_shares(layer_sizes(whole, i), s));
  const int64_t all = share_sizes(whole.sizes(Mixer::kAttention), s).heads;
  const int64_t window = share_sizes(whole.sizes(Mixer::kWindowAttention), s).heads;
  if (all == window) return {};
  return request_error(
      "{} devices cannot share this model: the heads of its two kinds of layers divide differently ({} and {})", s.of,
      all, window);
}

ModelConfig share_config(const ModelConfig& whole, const Shard& s) {
  ModelConfig c = whole;
  if (s.is_whole()) return c;
  const ModelSizes all = share_sizes(whole.sizes(Mixer::kAttention), s);
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  c.ranks = s.of;
  c.attention.heads = narrow(all.heads);
  c.attention.kv_heads = narrow(all.kv_heads);
  if (c.attention.window_heads.head_dim > 0)
    c.attention.window_heads.kv_heads = narrow(share_sizes(whole.sizes(Mixer::kWindowAttention), s).kv_heads);
  c.delta.key_heads = narrow(all.key_heads);
  c.delta.value_heads = narrow(all.value_heads);
  c.dense.d_ff = all.d_ff;
  for (int64_t i = 0; i < std::ssize(c.dense.widths); ++i) {
    int64_t& width = c.dense.widths[static_cast<size_t>(i)];
    width = share_sizes(whole.layer_sizes(i, Mixer::kAttention), s).d_ff;
    c.dense.d_ff = std::max(c.dense.d_ff, width);
  }
  c.experts.first = narrow(expert_share(whole.experts.count, s).begin);
  c.experts.d_ff = all.d_ff_expert;
  c.experts.d_ff_shared = all.d_ff_shared;
  return c;
}

}  // namespace quire
