#include "model/weights.h"

#include <cmath>

namespace quire {

using enum TensorRole;

namespace {

// One number; 1 where the file has none.
Status load_layer_scale(WeightLoader& w, int64_t block, float& scale) {
  QUIRE_TRY(const Tensor t, w.optional_vector(kLayerScale, block));
  if (t.empty()) return {};
  scale = *t.as<float>();
  return std::isfinite(scale) ? Status() : file_error("tensor {}: is not finite", tensor_name(kLayerScale, block));
}

Status load_feed_forward(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block,
                         LayerWeights& l) {
  if (!c.experts.in_layer(block)) {
    QUIRE_TRY(l.ffn, load_dense(w, row, block));
  } else if (c.experts.beside_dense) {
    QUIRE_TRY(l.ffn, load_parallel(w, row, c.experts, block));
  } else {
    QUIRE_TRY(l.ffn, load_experts(w, row, c.experts, block));
  }
  return {};
}

}  // namespace

Result<LayerWeights> load_layer(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block,
                                Mixer mixer) {
  w.use(c.layer_sizes(block, mixer));
  LayerWeights l;
  QUIRE_TRY(l.mixer_norm, w.vector(kAttnNorm, block));
  QUIRE_TRY(l.ffn_norm, w.vector(row.ffn_norm, block));
  if (row.norms_after) {
    QUIRE_TRY(l.mixer_out_norm, w.vector(kPostAttentionNorm, block));
    QUIRE_TRY(l.ffn_out_norm, w.vector(kPostFfnNorm, block));
  }
  if (mixer == Mixer::kDelta) {
    QUIRE_TRY(l.mixer, load_delta(w, c.delta, block));
  } else {
    QUIRE_TRY(l.mixer, load_attention(w, row, c.attention, block, mixer, c.own_kv(block)));
  }
  QUIRE_CHECKED(load_feed_forward(w, row, c, block, l));
  if (c.per_layer.width > 0) {
    QUIRE_TRY(l.per_layer, load_per_layer(w, block));
  }
  if (c.layer_scales) QUIRE_CHECKED(load_layer_scale(w, block, l.out_scale));
  return l;
}

}  // namespace quire
