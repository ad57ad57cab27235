#include "model/config.h"

#include <algorithm>
#include <array>

namespace quire {
namespace {

constexpr std::array<std::string_view, 6> kArchitectures = {"llama",    "qwen2",  "qwen3",
                                                            "qwen3moe", "qwen35", "qwen35moe"};

// Reads one model's keys "<architecture>.<key>", with ranges.
class Keys {
 public:
  Keys(const gguf::File& file, std::string architecture) : file_(file), arch_(std::move(architecture)) {}

  std::string full(std::string_view key) const { return fmt::format("{}.{}", arch_, key); }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  Status number(std::string_view key, int64_t lo, int64_t hi, int64_t& out) const {
    QUIRE_TRY(const uint32_t v, file_.get_u32(full(key)));
    return ranged(key, v, lo, hi, out);
  }
  Status number_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int64_t& out) const {
    if (!has(key)) {
      out = absent;
      return {};
    }
    return number(key, lo, hi, out);
  }
  Status number32(std::string_view key, int64_t lo, int64_t hi, int32_t& out) const {
    int64_t v = 0;
    QUIRE_CHECKED(number(key, lo, hi, v));
    out = static_cast<int32_t>(v);
    return {};
  }
  Status number32_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int32_t& out) const {
    int64_t v = 0;
    QUIRE_CHECKED(number_or(key, absent, lo, hi, v));
    out = static_cast<int32_t>(v);
    return {};
  }
  // A value that files may give once or per block; all blocks must agree.
  Status uniform(std::string_view key, int64_t blocks, int64_t lo, int64_t hi, int64_t& out) const {
    QUIRE_TRY(const std::vector<uint32_t> v, file_.get_u32_per_layer(full(key), blocks));
    if (std::any_of(v.begin(), v.end(), [&](uint32_t x) { return x != v.front(); }))
      return file_error("{}: differs between blocks, which is not supported", full(key));
    return ranged(key, v.front(), lo, hi, out);
  }
  Status positive(std::string_view key, float& out) const {
    QUIRE_TRY(out, file_.get_f32_or(full(key), out));
    if (!(out > 0.0f)) return file_error("{}: {} is not positive", full(key), out);
    return {};
  }

 private:
  Status ranged(std::string_view key, int64_t v, int64_t lo, int64_t hi, int64_t& out) const {
    if (v < lo || v > hi) return file_error("{}: {} is not between {} and {}", full(key), v, lo, hi);
    out = v;
    return {};
  }
  const gguf::File& file_;
  std::string arch_;
};

constexpr int64_t kMaxBlocks = 512, kMaxExperts = 1024, kMaxWidth = 1 << 20, kMaxHeads = 1024,
                  kMaxHeadDim = 1024;

Status read_attention(const Keys& k, const gguf::File& file, int64_t blocks, ModelConfig& c) {
  int64_t heads = 0, kv = 0;
  QUIRE_CHECKED(k.uniform("attention.head_count", blocks, 1, kMaxHeads, heads));
  if (k.has("attention.head_count_kv")) {
    // Hybrid files may give 0 for recurrent blocks; only attention blocks count.
    QUIRE_TRY(const std::vector<uint32_t> v,
              file.get_u32_per_layer(k.full("attention.head_count_kv"), blocks));
    for (uint32_t x : v) {
      if (x == 0 && c.hybrid) continue;
      if (kv != 0 && x != kv)
        return file_error("{}: differs between blocks, which is not supported",
                          k.full("attention.head_count_kv"));
      kv = x;
    }
  } else {
    kv = heads;
  }
  if (kv < 1 || heads % kv != 0)
    return file_error("{}: {} heads cannot share {} KV heads", k.full("attention.head_count_kv"), heads, kv);
  c.heads = static_cast<int32_t>(heads);
  c.kv_heads = static_cast<int32_t>(kv);
  const int64_t default_dim = c.d_model / heads;
  QUIRE_CHECKED(k.number32_or("attention.key_length", default_dim, 2, kMaxHeadDim, c.head_dim));
  int32_t value_dim = 0;
  QUIRE_CHECKED(k.number32_or("attention.value_length", c.head_dim, 2, kMaxHeadDim, value_dim));
  if (value_dim != c.head_dim || c.head_dim % 2 != 0)
    return file_error("{}: keys of {} and values of {} elements are not supported (must be equal and even)",
                      k.full("attention.value_length"), c.head_dim, value_dim);
  c.eps = 0.0f;
  return k.positive("attention.layer_norm_rms_epsilon", c.eps);
}

Status read_rope(const Keys& k, const gguf::File& file, ModelConfig& c) {
  c.rope.style = c.architecture == "llama" ? Rope::Style::kInterleaved : Rope::Style::kHalves;
  QUIRE_CHECKED(k.number32_or("rope.dimension_count", c.head_dim, 2, c.head_dim, c.rope.n_rot));
  if (c.rope.n_rot % 2 != 0) return file_error("{}: {} is odd", k.full("rope.dimension_count"), c.rope.n_rot);
  QUIRE_CHECKED(k.positive("rope.freq_base", c.rope.freq_base));
  QUIRE_TRY(const std::string_view type, file.get_string_or(k.full("rope.scaling.type"), "none"));
  QUIRE_CHECKED(k.positive("rope.scaling.factor", c.rope.factor));
  QUIRE_CHECKED(k.positive("rope.scaling.attn_factor", c.rope.attn_factor));
  QUIRE_CHECKED(k.number_or("rope.scaling.original_context_length", c.context_length, 1, INT32_MAX,
                            c.rope.original_context));
  if (type == "yarn") {
    c.rope.scaling = RopeConfig::Scaling::kYarn;
  } else if (type == "linear" || type == "none") {
    c.rope.scaling =
        type == "linear" && c.rope.factor != 1.0f ? RopeConfig::Scaling::kLinear : RopeConfig::Scaling::kNone;
  } else {
    return file_error("{}: {} is not supported (none, linear and yarn are)", k.full("rope.scaling.type"),
                      gguf::printable(type));
  }
  return {};
}

Status read_ffn(const Keys& k, ModelConfig& c) {
  QUIRE_CHECKED(k.number32_or("expert_count", 0, 0, kMaxExperts, c.experts));
  const bool needs_experts = c.architecture == "qwen3moe" || c.architecture == "qwen35moe";
  if (needs_experts && c.experts == 0)
    return file_error("{}: a model of experts has none", k.full("expert_count"));
  if (!needs_experts && c.architecture != "llama" && c.experts != 0)
    return file_error("{}: {} has no experts", k.full("expert_count"), c.architecture);
  if (c.experts == 0) return k.uniform("feed_forward_length", c.layers + c.mtp_layers, 1, kMaxWidth, c.d_ff);
  QUIRE_CHECKED(k.number32("expert_used_count", 1, c.experts, c.top_k));
  QUIRE_CHECKED(k.number_or("feed_forward_length", 0, 0, kMaxWidth, c.d_ff));
  const int64_t default_width = c.architecture == "llama" ? c.d_ff : c.d_ff / c.top_k;
  QUIRE_CHECKED(k.number_or("expert_feed_forward_length", default_width, 1, kMaxWidth, c.d_ff_expert));
  if (c.d_ff_expert < 1) return file_error("{}: missing", k.full("expert_feed_forward_length"));
  if (c.architecture == "qwen35moe")
    QUIRE_CHECKED(k.number_or("expert_shared_feed_forward_length", c.d_ff, 1, kMaxWidth, c.d_ff_shared));
  return {};
}

Status read_delta(const Keys& k, const gguf::File& file, ModelConfig& c) {
  int64_t inner = 0;
  QUIRE_CHECKED(k.number32("ssm.conv_kernel", 2, 64, c.delta.conv_kernel));
  QUIRE_CHECKED(k.number32("ssm.state_size", 1, kMaxHeadDim, c.delta.key_dim));
  QUIRE_CHECKED(k.number32("ssm.group_count", 1, kMaxHeads, c.delta.key_heads));
  QUIRE_CHECKED(k.number32("ssm.time_step_rank", 1, kMaxHeads, c.delta.value_heads));
  QUIRE_CHECKED(k.number("ssm.inner_size", 1, kMaxWidth, inner));
  if (c.delta.value_heads % c.delta.key_heads != 0 || inner % c.delta.value_heads != 0 ||
      inner / c.delta.value_heads > kMaxHeadDim)
    return file_error("{}: {} value heads over {} key heads with {} inner elements do not divide",
                      k.full("ssm.inner_size"), c.delta.value_heads, c.delta.key_heads, inner);
  c.delta.value_dim = static_cast<int32_t>(inner / c.delta.value_heads);

  const int64_t blocks = c.layers + c.mtp_layers;
  c.recurrent.assign(static_cast<size_t>(c.layers), false);
  if (k.has("attention.recurrent_layers")) {
    QUIRE_TRY(const std::vector<int32_t> map,
              file.get_i32_per_layer(k.full("attention.recurrent_layers"), blocks));
    for (int32_t i = 0; i < c.layers; ++i)
      c.recurrent[static_cast<size_t>(i)] = map[static_cast<size_t>(i)] != 0;
    return {};
  }
  int64_t interval = 0;
  QUIRE_CHECKED(k.number_or("full_attention_interval", 4, 1, kMaxBlocks, interval));
  for (int32_t i = 0; i < c.layers; ++i) c.recurrent[static_cast<size_t>(i)] = (i + 1) % interval != 0;
  return {};
}

}  // namespace

int32_t ModelConfig::attention_layers() const {
  return static_cast<int32_t>(std::count(recurrent.begin(), recurrent.end(), false));
}

Result<ModelConfig> read_config(const gguf::File& file) {
  ModelConfig c;
  QUIRE_TRY(const std::string_view type, file.get_string_or("general.type", "model"));
  if (type != "model")
    return file_error("general.type is {}: this file holds no language model to run", gguf::printable(type));
  QUIRE_TRY(const std::string_view arch, file.get_string("general.architecture"));
  if (std::find(kArchitectures.begin(), kArchitectures.end(), arch) == kArchitectures.end())
    return file_error("architecture {} is not supported (supported: {})", gguf::printable(arch),
                      fmt::join(kArchitectures, ", "));
  c.architecture = arch;
  QUIRE_TRY(const std::string_view name, file.get_string_or("general.name", ""));
  c.name = name;
  c.hybrid = arch == "qwen35" || arch == "qwen35moe";
  c.qk_norm = arch.starts_with("qwen3");

  const Keys k(file, c.architecture);
  int64_t blocks = 0;
  QUIRE_CHECKED(k.number("block_count", 1, kMaxBlocks, blocks));
  if (c.hybrid) QUIRE_CHECKED(k.number32_or("nextn_predict_layers", 0, 0, blocks - 1, c.mtp_layers));
  c.layers = static_cast<int32_t>(blocks) - c.mtp_layers;
  QUIRE_CHECKED(k.number("embedding_length", 1, kMaxWidth, c.d_model));
  QUIRE_CHECKED(k.number("context_length", 1, INT32_MAX, c.context_length));
  QUIRE_CHECKED(read_attention(k, file, blocks, c));
  QUIRE_CHECKED(read_rope(k, file, c));
  QUIRE_CHECKED(read_ffn(k, c));
  c.recurrent.assign(static_cast<size_t>(c.layers), false);
  if (c.hybrid) QUIRE_CHECKED(read_delta(k, file, c));
  const gguf::TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return file_error("tensor token_embd.weight is missing");
  c.vocab = embedding->dims[1];
  if (c.vocab < 1 || c.vocab > INT32_MAX)
    return file_error("token_embd.weight: a vocabulary of {} tokens", c.vocab);
  return c;
}

}  // namespace quire
