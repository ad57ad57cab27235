#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "arch/architecture.h"
#include "model/memory.h"

namespace quire {
namespace {

const Architecture& row_of(const ModelConfig& c) {
  const Architecture* const row = find_architecture(c.architecture);
  QUIRE_CHECK(row != nullptr, "no architecture {}", c.architecture);
  return *row;
}

// Writers keep the keys and values of layers that attend to those of others.
bool belongs_to_left_out(std::string_view name, const ModelConfig& c) {
  for (const std::string_view suffix : {".input_scale", ".scale"})
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  return c.leaves_out(find_tensor_spec(name)) || c.leaves_out(find_tensor_spec(fmt::format("{}.weight", name)));
}

// Whether nothing that a block leaves unread would change what it computes.
Status check_unread(std::string_view name, const ModelConfig& c) {
  const UnsupportedTensor* const t = find_unsupported_tensor(name);
  if (t == nullptr || belongs_to_left_out(name, c)) return {};
  return file_error("tensor {}: {} are not supported for the architecture {}", name, t->what, c.architecture);
}

// The same of the whole file, where whatever is not known to be harmless counts.
Status check_unread_of_file(std::string_view name, const ModelConfig& c) {
  QUIRE_CHECKED(check_unread(name, c));
  if (may_stay_unread(name) || belongs_to_left_out(name, c)) return {};
  return file_error(
      "tensor {} is read by nothing: the architecture {} has no place for it, so that the answers would be others "
      "than the model's; convert the model again with a current converter, or take the file of another one",
      gguf::printable(name), c.architecture);
}

}  // namespace

Result<std::unique_ptr<const Model>> Model::load(const gguf::File& file, const Shard& shard) {
  QUIRE_TRY(ModelConfig config, read_config(file));
  std::unique_ptr<Model> m(new Model(file, shard));
  if (!shard.is_whole()) {
    m->shard_.grains = share_grains(file);
    QUIRE_CHECKED(check_shares(config, m->shard_));
  }
  QUIRE_CHECKED(m->load_weights(std::move(config)));
  return std::unique_ptr<const Model>(std::move(m));
}

Status Model::load_weights(ModelConfig config) {
  const Architecture& row = row_of(config);
  WeightLoader w(file_, config.sizes(), arena_, shard_);
  DecoderWeights all;
  QUIRE_TRY(all.embedding, w.matrix(TensorRole::kTokenEmbedding));
  QUIRE_TRY(all.output_norm, w.vector(TensorRole::kOutputNorm));
  QUIRE_TRY(all.head, w.optional_matrix(TensorRole::kOutput));
  if (all.head.empty()) {  // tied
    QUIRE_TRY(all.head, w.share(all.embedding, TensorRole::kOutput));
  }
  all.head_begins = head_begins(config.vocab, shard_);
  all.rank = shard_.rank;
  if (config.embedding_scale != 1) {
    all.embedding.scale = w.factor(config.embedding_scale * all.embedding.scale_of(0));
  }
  if (config.per_layer.width > 0) {
    QUIRE_TRY(all.per_layer, load_per_layer_input(w, config.per_layer));
  }
  QUIRE_TRY(all.output_bias, w.optional_vector(TensorRole::kOutputBias));
  QUIRE_TRY(const std::span<const float> divisors, load_rope_divisors(w));
  rope_table_ = make_rope_table(config.attention.rope, divisors);
  all.rope = rope_table_.rope(config.attention.rope);
  if (std::find(config.mixers.begin(), config.mixers.end(), Mixer::kWindowAttention) != config.mixers.end()) {
    local_rope_table_ = make_rope_table(config.attention.local_rope, {});
    all.local_rope = local_rope_table_.rope(config.attention.local_rope);
  }
  for (int32_t i = 0; i < config.layers; ++i) {
    QUIRE_TRY(LayerWeights l, load_layer(w, row, config, i, config.mixers[static_cast<size_t>(i)]));
    all.layers.push_back(std::move(l));
  }
  for (const std::string_view name : w.unread()) {
    const int64_t block = block_of(name);
    // A block for multi-token prediction only drafts what the model then checks, and Model::mtp looks at it.
    if (config.mtp_layers > 0 && name == tensor_name(TensorRole::kMtpHeadTokens)) continue;
    if (block >= config.layers && block < config.layers + config.mtp_layers) continue;
    QUIRE_CHECKED(check_unread_of_file(name, config));
    unread_.push_back(name);
  }
  whole_ = std::make_shared<const ModelConfig>(std::move(config));
  decoder_.emplace(shard_.is_whole() ? whole_ : std::make_shared<const ModelConfig>(share_config(*whole_, shard_)),
                   std::move(all));
  return {};
}

CacheShape Model::cache_shape(Device device, KvCacheType kv) const {
  return quire::cache_shape(config(), activation_type(device), kv);
}

std::vector<Weight> Model::matrices() const {
  struct Collect final : WeightVisitor {
    std::vector<Weight> all;
    void matrix(const Weight& w) override { all.push_back(w); }
    void table(const Weight&) override {}
    void vector(const Tensor&) override {}
  } collect;
  decoder_->visit(collect);
  return std::move(collect.all);
}

Result<int64_t> Model::mtp_block_of(const gguf::File& file) const {
  const std::string& name = config().architecture;
  if (!row_of(config()).mtp)
    return file_error("blocks for multi-token prediction are not supported for the architecture {}", name);
  QUIRE_TRY(const std::string_view theirs, file.get_string("general.architecture"));
  if (theirs != name)
    return file_error("it is of the architecture {}, but the model is of {}", gguf::printable(theirs), name);
  QUIRE_TRY(const uint32_t blocks, file.get_u32(name + ".block_count"));
  QUIRE_TRY(const uint32_t mtp, file.get_u32_or(name + ".nextn_predict_layers", 0));
  if (mtp != 1 || blocks < 2)
    return file_error("{} blocks for multi-token prediction: {}", mtp,
                      mtp == 0 ? "there is none to draft with" : "one is supported");
  return int64_t{blocks} - 1;
}

Result<MtpBlock> Model::mtp(const gguf::File& file) const {
  const ModelConfig& c = *whole_;
  QUIRE_TRY(const int64_t block, mtp_block_of(file));
  MtpBlock m;
  WeightLoader w(file, c.sizes(), m.arena, shard_);
  QUIRE_TRY(m.weights.input, load_mtp_input(w, block));
  QUIRE_TRY(m.weights.embedding, w.optional_matrix(TensorRole::kMtpEmbedding, block));
  QUIRE_TRY(m.weights.head, load_mtp_head(w, block));
  QUIRE_TRY(m.weights.layer, load_layer(w, row_of(c), c, block, Mixer::kAttention));
  for (const std::string_view name : w.unread())
    if (block_of(name) == block) QUIRE_CHECKED(check_unread(name, c));
  return m;
}

}  // namespace quire
