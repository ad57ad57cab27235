#include "engine/layer_split.h"

#include <algorithm>
#include <limits>

#include "arch/tensors.h"

namespace quire {

int64_t LayerBytes::of(LayerRange range) const {
  int64_t sum = 0;
  for (int32_t i = range.first; i < range.end; ++i) sum += layers[static_cast<size_t>(i)];
  if (range.first == 0) sum += before;
  return range.end == std::ssize(layers) ? sum + behind : sum;
}

LayerBytes layer_bytes(const gguf::File& file, const ModelConfig& model, bool drafts) {
  LayerBytes b;
  b.layers.resize(static_cast<size_t>(model.layers));
  int64_t embedding = 0;
  bool tied = true;
  for (const gguf::TensorInfo& t : file.tensors()) {
    const int64_t block = block_of(t.name);
    if (block >= model.layers) {
      b.behind += drafts ? t.bytes : 0;
    } else if (block >= 0) {
      b.layers[static_cast<size_t>(block)] += t.bytes;
    } else if (t.name == tensor_name(TensorRole::kTokenEmbedding)) {
      embedding = t.bytes;
    } else if (t.name.starts_with("per_layer_")) {
      b.before += t.bytes;
    } else {
      tied &= t.name != tensor_name(TensorRole::kOutput);
      b.behind += t.bytes;
    }
  }
  b.before += embedding;
  b.behind += (tied ? embedding : 0) + (drafts ? embedding : 0);
  return b;
}

bool may_begin_with(const ModelConfig& c, int32_t layer, int64_t deepstack) {
  if (layer < deepstack) return false;
  for (int32_t i = layer; i < c.layers; ++i)
    if (c.mixers[static_cast<size_t>(i)] != Mixer::kDelta && !c.own_kv(i) && c.attention.kv_layer(c.mixers, i) < layer)
      return false;
  return true;
}

Result<std::vector<LayerRange>> split_layers(const ModelConfig& model, const LayerBytes& bytes, int64_t deepstack,
                                             std::span<const double> shares) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto layers = static_cast<size_t>(model.layers), parts = shares.size();
  std::vector<char> may_begin(layers);
  for (size_t i = 1; i < layers; ++i) may_begin[i] = may_begin_with(model, static_cast<int32_t>(i), deepstack);
  // Of the first i layers in so many parts: the largest part of a share at least, and where the last part begins.
  struct Best {
    double largest = kNever;
    size_t first = 0;
  };
  std::vector<std::vector<Best>> best(parts, std::vector<Best>(layers + 1));
  for (size_t p = 0; p < parts; ++p)
    for (size_t end = p + 1; end <= layers; ++end)
      for (size_t first = p; first < end; ++first) {
        if (p == 0 ? first != 0 : may_begin[first] == 0) continue;
        const double before = p == 0 ? 0.0 : best[p - 1][first].largest;
        const int64_t own = bytes.of({static_cast<int32_t>(first), static_cast<int32_t>(end)});
        const double largest = std::max(before, static_cast<double>(own) / shares[p]);
        if (largest < best[p][end].largest) best[p][end] = {largest, first};
      }
  if (best[parts - 1][layers].largest == kNever)
    return request_error(
        "{} pipeline stages: the model's {} layers cannot be cut into as many, because layers that share keys and "
        "values, or take in pictures, stay together",
        parts, layers);
  std::vector<LayerRange> ranges(parts);
  size_t end = layers;
  for (size_t p = parts; p-- > 0;) {
    const size_t first = best[p][end].first;
    ranges[p] = {static_cast<int32_t>(first), static_cast<int32_t>(end)};
    end = first;
  }
  return ranges;
}

}  // namespace quire
