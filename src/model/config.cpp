#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "arch/architecture.h"
#include "parts/keys.h"

namespace quire {
namespace {

// Each layer's: attention to all positions where no part says otherwise.
Status read_mixers(const ModelKeys& k, const Architecture& row, ModelConfig& c) {
  QUIRE_TRY(const std::vector<bool> windows, read_windows(k, row));
  QUIRE_TRY(const std::vector<bool> deltas, read_delta_layers(k, row));
  c.mixers.assign(static_cast<size_t>(c.layers), Mixer::kAttention);
  for (size_t i = 0; i < c.mixers.size(); ++i)
    if (windows[i] || deltas[i]) c.mixers[i] = windows[i] ? Mixer::kWindowAttention : Mixer::kDelta;
  return {};
}

// What the fields that are there for other models must be.
Status check_supported(const ModelKeys& k, const Architecture& row, const ModelConfig& c) {
  if (!row.scaled_embedding && c.embedding_scale != 1)
    return k.unsupported("embedding_scale", "a scale of embeddings is");
  if (c.residual_scale != 1) return k.unsupported("residual_scale", "a scale of the residual stream is");
  if (c.logit_scale != 1) return k.unsupported("logit_scale", "a scale of logits is");
  if (!row.capped_logits && c.logit_soft_cap != 0)
    return k.unsupported("final_logit_softcapping", "a soft cap of logits is");
  return {};
}

}  // namespace

int32_t ModelConfig::attention_layers() const {
  return static_cast<int32_t>(std::ssize(mixers) - std::count(mixers.begin(), mixers.end(), Mixer::kDelta));
}

bool ModelConfig::has_windows() const {
  return attention.window > 0 && std::count(mixers.begin(), mixers.end(), Mixer::kWindowAttention) > 0;
}

bool ModelConfig::leaves_out(const std::optional<TensorId>& id) const {
  return id && id->block >= 0 && id->block < layers && !own_kv(id->block) && is_of_own_kv(id->spec->role);
}

ModelSizes ModelConfig::layer_sizes(int64_t block, Mixer m) const {
  ModelSizes s = sizes(m);
  s.d_ff = dense.width(block);
  return s;
}

ModelSizes ModelConfig::sizes(Mixer m) const {
  const HeadShape heads = attention.heads_of(m);
  return {.vocab = vocab,
          .d_model = d_model,
          .layers = layers,
          .d_per_layer = per_layer.width,
          .heads = attention.heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .n_rot = attention.rope.n_rot,
          .gated_query = attention.gated_query,
          .conv_kernel = delta.conv_kernel,
          .key_heads = delta.key_heads,
          .value_heads = delta.value_heads,
          .key_dim = delta.key_dim,
          .value_dim = delta.value_dim,
          .grouped_value_heads = delta.grouped,
          .d_ff = dense.d_ff,
          .experts = experts.count,
          .d_ff_expert = experts.d_ff,
          .d_ff_shared = experts.d_ff_shared};
}

Result<ModelConfig> read_config(const gguf::File& file) {
  ModelConfig c;
  QUIRE_TRY(const std::string_view type, file.get_string_or("general.type", "model"));
  if (type != "model")
    return file_error("general.type is {}: this file holds no language model to run", gguf::printable(type));
  QUIRE_TRY(const std::string_view arch, file.get_string("general.architecture"));
  const Architecture* const row = find_architecture(arch);
  if (row == nullptr)
    return file_error("architecture {} is not supported (supported: {})", gguf::printable(arch), architecture_names());
  c.architecture = arch;
  QUIRE_TRY(const std::string_view name, file.get_string_or("general.name", ""));
  c.name = name;

  ModelKeys k(file, c.architecture);
  int64_t blocks = 0;
  QUIRE_CHECKED(k.number("block_count", 1, kMaxBlocks, blocks));
  if (row->mtp || row->mtp_left_out)
    QUIRE_CHECKED(k.number32_or("nextn_predict_layers", 0, 0, blocks - 1, c.mtp_layers));
  c.layers = static_cast<int32_t>(blocks) - c.mtp_layers;
  k.set_layers(c.layers, c.mtp_layers);
  QUIRE_CHECKED(k.number("embedding_length", 1, kMaxWidth, c.d_model));
  QUIRE_CHECKED(k.number("context_length", 1, INT32_MAX, c.context_length));
  QUIRE_CHECKED(read_mixers(k, *row, c));
  QUIRE_TRY(c.per_layer, read_per_layer(k, *row));
  QUIRE_TRY(c.attention, read_attention(k, *row, c.mixers, c.d_model, c.context_length));
  c.eps = 0.0f;
  QUIRE_CHECKED(k.positive("attention.layer_norm_rms_epsilon", c.eps));
  if (row->delta_net) {
    QUIRE_TRY(c.delta, read_delta(k, *row));
  }
  QUIRE_TRY(const int32_t experts, read_expert_count(k, *row));
  QUIRE_TRY(c.dense, read_dense(k, *row, experts == 0 || row->dense_beside_experts));
  if (experts > 0) {
    QUIRE_TRY(c.experts, read_experts(k, *row, experts, c.dense));
  }
  c.norms_after = row->norms_after;
  c.layer_scales = row->layer_scales;
  c.pictures_in_windows = row->pictures_in_windows;
  if (row->scaled_embedding) c.embedding_scale = std::sqrt(static_cast<float>(c.d_model));
  QUIRE_CHECKED(k.real("embedding_scale", c.embedding_scale));
  QUIRE_CHECKED(k.real("residual_scale", c.residual_scale));
  QUIRE_CHECKED(k.real("logit_scale", c.logit_scale));
  QUIRE_CHECKED(k.real("final_logit_softcapping", c.logit_soft_cap));
  if (!(c.logit_soft_cap >= 0) || !std::isfinite(c.logit_soft_cap))
    return file_error("{}: {} is not positive", k.full("final_logit_softcapping"), c.logit_soft_cap);
  QUIRE_CHECKED(check_supported(k, *row, c));
  const std::string embedding_name = tensor_name(TensorRole::kTokenEmbedding);
  const gguf::TensorInfo* embedding = file.find_tensor(embedding_name);
  if (embedding == nullptr) return file_error("tensor {} is missing", embedding_name);
  c.vocab = embedding->dims[1];
  if (c.vocab < 1 || c.vocab > INT32_MAX) return file_error("{}: a vocabulary of {} tokens", embedding_name, c.vocab);
  return c;
}

}  // namespace quire
