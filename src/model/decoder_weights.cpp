// Which weights a decoder is made of, in the order of use; where they lie; and the one of a block for multi-token
// prediction.
#include <algorithm>
#include <utility>

#include "model/decoder.h"

namespace quire {

Decoder::Decoder(std::shared_ptr<const ModelConfig> config, DecoderWeights weights)
    : config_(std::move(config)), w_(std::move(weights)), range_{0, static_cast<int32_t>(w_.layers.size())} {
  QUIRE_CHECK(w_.layers.size() == config_->mixers.size(), "{} layers, but {} mixers", w_.layers.size(),
              config_->mixers.size());
}

namespace {

template <class Weights, class Visitor>
void visit_all(Weights& w, LayerRange layers, Visitor& v) {
  if (!w.embedding.empty()) v.table(w.embedding);
  w.per_layer.visit(w.per_layer, v);
  v.vector(w.rope.inv_freq);
  v.vector(w.rope.axes);
  v.vector(w.local_rope.inv_freq);
  for (int32_t i = layers.first; i < layers.end; ++i) {
    auto& layer = w.layers[static_cast<size_t>(i)];
    layer.visit(layer, v);
  }
  v.vector(w.output_norm);
  v.matrix(w.head);
  v.vector(w.output_bias);
}

}  // namespace

void Decoder::visit(WeightVisitor& v) const {
  visit_all(w_, range_, v);
}

Decoder Decoder::placed(WeightPlacer& v) const {
  Decoder copy = *this;
  visit_all(copy.w_, range_, v);
  return copy;
}

int32_t Decoder::kv_layers() const {
  int32_t layers = w_.first_kv_layer;
  for (int32_t i = range_.first; i < range_.end; ++i)
    layers += config_->mixers[static_cast<size_t>(i)] != Mixer::kDelta && config_->own_kv(i);
  return layers;
}

Decoder Decoder::part(LayerRange layers, bool drafts) const {
  QUIRE_CHECK(layers.first >= range_.first && layers.end <= range_.end && layers.count() > 0,
              "layers {} to {} of {} to {}", layers.first, layers.end, range_.first, range_.end);
  Decoder copy = *this;
  copy.range_ = layers;
  DecoderWeights& w = copy.w_;
  for (int32_t i = 0; i < std::ssize(w.layers); ++i)
    if (!layers.contains(i)) w.layers[static_cast<size_t>(i)] = {};
  if (!copy.begins()) w.per_layer = {};
  if (!copy.begins() && !(copy.ends() && drafts)) w.embedding = {};
  if (!copy.ends()) w.head = {}, w.output_norm = {}, w.output_bias = {}, w.head_tokens = {};
  return copy;
}

void visit(MtpWeights& w, WeightPlacer& v) {
  if (!w.embedding.empty()) v.table(w.embedding);
  w.input.visit(w.input, v);
  w.layer.visit(w.layer, v);
  w.head.visit(w.head, v);
}

Decoder mtp_decoder(const Decoder& main, const MtpWeights& block, int64_t head_rows) {
  auto config = std::make_shared<ModelConfig>(main.config());
  const int32_t behind = main.kv_layers();
  config->layers = 1;
  config->mixers = {Mixer::kAttention};
  DecoderWeights w = main.w_;
  w.input = block.input;
  w.layers = {block.layer};
  w.first_kv_layer = behind;
  if (!block.embedding.empty()) w.embedding = block.embedding;
  if (!block.head.norm.empty()) w.output_norm = block.head.norm;
  if (!block.head.matrix.empty()) {
    w.head = block.head.matrix, w.head_tokens = block.head.tokens, w.output_bias = {};
    w.head_begins = block.head.begins;
  }
  config->vocab = std::min(head_rows, w.head_begins.back());
  // The first rows lie where they lay, whatever their layout. Of several ranks, later ones may have none of them.
  const int64_t first = w.head_begins[static_cast<size_t>(w.rank)];
  w.head.rows = std::clamp<int64_t>(config->vocab - first, 0, w.head.rows);
  for (int64_t& begin : w.head_begins) begin = std::min(begin, config->vocab);
  if (!w.output_bias.empty()) w.output_bias = w.output_bias.rows(0, w.head.rows);
  if (!w.head_tokens.empty()) w.head_tokens = w.head_tokens.rows(0, config->vocab);
  return {std::move(config), std::move(w)};
}

}  // namespace quire
