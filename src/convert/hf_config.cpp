#include "convert/hf_config.h"

#include <algorithm>
#include <cmath>

#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

struct ClassName {
  std::string_view hf, gguf;
};
constexpr ClassName kClasses[] = {
    {"LlamaForCausalLM", "llama"},
    {"MixtralForCausalLM", "llama"},
    {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"},
    {"Qwen3MoeForCausalLM", "qwen3moe"},
    {"Qwen3_5ForCausalLM", "qwen35"},
    {"Qwen3_5ForConditionalGeneration", "qwen35"},
    {"Qwen3_5MoeForCausalLM", "qwen35moe"},
    {"Qwen3_5MoeForConditionalGeneration", "qwen35moe"},
};

constexpr int64_t kMaxLayers = 512, kMaxExperts = 1024, kMaxWidth = 1 << 20, kMaxHeads = 1024,
                  kMaxHeadDim = 1024, kMaxVocab = 1 << 22;

// Typed look-up: first in the text model's own part, then at the top of the file.
class Keys {
 public:
  Keys(const json& text, const json& root) : text_(text), root_(root) {}

  const json* find(std::string_view key) const {
    const json* v = find_member(text_, key);
    return v != nullptr ? v : find_member(root_, key);
  }
  Status number(std::string_view key, int64_t lo, int64_t hi, int64_t& out) const {
    if (find(key) == nullptr) return file_error("{}: missing", key);
    return number_or(key, 0, lo, hi, out);
  }
  Status number_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int64_t& out) const {
    const json* v = find(key);
    out = absent;
    if (v == nullptr) return {};
    if (!v->is_number_integer()) return file_error("{}: is not a whole number", key);
    // An unsigned number above 2^63 comes out negative.
    out = v->get<int64_t>();
    if (out < lo || out > hi) return file_error("{}: {} is not between {} and {}", key, v->dump(), lo, hi);
    return {};
  }
  Status flag_or(std::string_view key, bool absent, bool& out) const {
    const json* v = find(key);
    out = absent;
    if (v == nullptr) return {};
    if (!v->is_boolean()) return file_error("{}: is not true or false", key);
    out = v->get<bool>();
    return {};
  }

 private:
  const json& text_;
  const json& root_;
};

Status positive_or(const json* v, std::string_view key, double absent, double& out) {
  out = absent;
  if (v == nullptr) return {};
  if (!v->is_number()) return file_error("{}: is not a number", key);
  out = v->get<double>();
  if (!(out > 0) || !std::isfinite(static_cast<float>(out)))
    return file_error("{}: {} is not a positive number", key, out);
  return {};
}

Result<std::string> text_of(const json* v, std::string_view key) {
  if (v == nullptr) return std::string();
  if (!v->is_string()) return file_error("{}: is not a text", key);
  return v->get<std::string>();
}

Status read_attention(const Keys& k, HfConfig& c) {
  QUIRE_CHECKED(k.number("num_attention_heads", 1, kMaxHeads, c.heads));
  QUIRE_CHECKED(k.number_or("num_key_value_heads", c.heads, 1, kMaxHeads, c.kv_heads));
  if (c.heads % c.kv_heads != 0)
    return file_error("num_key_value_heads: {} heads cannot share {} KV heads", c.heads, c.kv_heads);
  const int64_t default_dim = c.architecture == "qwen3"              ? 128
                              : c.architecture.starts_with("qwen35") ? 256
                                                                     : c.hidden / c.heads;
  QUIRE_CHECKED(k.number_or("head_dim", default_dim, 2, kMaxHeadDim, c.head_dim));
  if (c.head_dim < 2 || c.head_dim % 2 != 0) return file_error("head_dim: {} is not even", c.head_dim);
  bool gated = true;
  QUIRE_CHECKED(k.flag_or("attn_output_gate", true, gated));
  if (c.architecture.starts_with("qwen35") && !gated)
    return file_error("attn_output_gate: false is not supported by this architecture");
  return {};
}

// Sections of the multi-axis RoPE, padded to four.
Status read_sections(const json* list, HfConfig& c) {
  c.rope_sections = {11, 11, 10, 0};
  if (list == nullptr) return {};
  if (!list->is_array() || list->empty() || list->size() > 4)
    return file_error("mrope_section: is not a list of one to four numbers");
  c.rope_sections.assign(4, 0);
  for (size_t i = 0; i < list->size(); ++i) {
    const json& x = (*list)[i];
    if (!x.is_number_integer() || x.get<int64_t>() < 0 || x.get<int64_t>() > kMaxHeadDim)
      return file_error("mrope_section: entry {} is not a small whole number", i);
    c.rope_sections[i] = x.get<int32_t>();
  }
  return {};
}

Status read_yarn(const json& r, HfConfig& c) {
  double fast = 32, slow = 1, magnitude = 0;
  QUIRE_CHECKED(positive_or(find_member(r, "beta_fast"), "beta_fast", 32, fast));
  QUIRE_CHECKED(positive_or(find_member(r, "beta_slow"), "beta_slow", 1, slow));
  if (fast != 32 || slow != 1)
    return file_error("rope scaling: beta_fast {} and beta_slow {} are not supported (32 and 1 are)", fast,
                      slow);
  const json* truncate = find_member(r, "truncate");
  if (find_member(r, "mscale") != nullptr || find_member(r, "mscale_all_dim") != nullptr ||
      (truncate != nullptr && *truncate != json(true)))
    return file_error("rope scaling: mscale, mscale_all_dim and truncate are not supported");
  // The file's own magnitude replaces what readers compute from the factor: store their ratio.
  const double computed = 0.1 * std::log(c.rope.factor) + 1;
  QUIRE_CHECKED(positive_or(find_member(r, "attention_factor"), "attention_factor", computed, magnitude));
  c.rope.attn_factor = magnitude / computed;
  return {};
}

Status read_scaling(const json& r, HfConfig& c) {
  const json* type = find_member(r, "rope_type");
  if (type == nullptr) type = find_member(r, "type");
  QUIRE_TRY(const std::string kind, text_of(type, "rope_type"));
  if (kind.empty() || kind == "default" || kind == "mrope") return {};
  QUIRE_CHECKED(positive_or(find_member(r, "factor"), "rope scaling: factor", 1, c.rope.factor));
  double original = 0;
  QUIRE_CHECKED(positive_or(find_member(r, "original_max_position_embeddings"),
                            "original_max_position_embeddings", static_cast<double>(c.context), original));
  if (original < 1 || original > INT32_MAX)
    return file_error("original_max_position_embeddings: {} is not a context length", original);
  c.rope.original_context = static_cast<int64_t>(original);
  if (kind == "linear") {
    c.rope.kind = RopeScaling::Kind::kLinear;
    return {};
  }
  if (kind == "yarn") {
    c.rope.kind = RopeScaling::Kind::kYarn;
    return read_yarn(r, c);
  }
  if (kind == "llama3" && c.architecture == "llama") {
    c.rope.kind = RopeScaling::Kind::kLlama3;
    QUIRE_CHECKED(positive_or(find_member(r, "low_freq_factor"), "low_freq_factor", 1, c.rope.low_factor));
    QUIRE_CHECKED(positive_or(find_member(r, "high_freq_factor"), "high_freq_factor", 4, c.rope.high_factor));
    if (c.rope.high_factor <= c.rope.low_factor)
      return file_error("high_freq_factor: {} is not above low_freq_factor {}", c.rope.high_factor,
                        c.rope.low_factor);
    return {};
  }
  return file_error(
      "rope_type: {} is not supported for {} (default, linear and yarn are, and llama3 for llama)",
      printable(kind), c.architecture);
}

// Newer files have rope_parameters; older ones rope_scaling, with the rest beside it.
Status read_rope(const Keys& k, HfConfig& c) {
  static const json kNothing = json::object();
  const json* r = k.find("rope_parameters");
  if (r == nullptr) r = k.find("rope_scaling");
  if (r == nullptr) r = &kNothing;
  if (!r->is_object()) return file_error("rope_parameters: is no object");
  const auto either = [&](std::string_view key) {
    const json* v = find_member(*r, key);
    return v != nullptr ? v : k.find(key);
  };
  QUIRE_CHECKED(positive_or(either("rope_theta"), "rope_theta", 10000, c.rope_theta));
  double share = 1;
  QUIRE_CHECKED(positive_or(either("partial_rotary_factor"), "partial_rotary_factor",
                            c.architecture.starts_with("qwen35") ? 0.25 : 1, share));
  if (share > 1) return file_error("partial_rotary_factor: {} is above 1", share);
  c.n_rot = static_cast<int64_t>(static_cast<double>(c.head_dim) * share);
  if (c.n_rot < 2 || c.n_rot % 2 != 0)
    return file_error("partial_rotary_factor: {} of {} dimensions is not an even number", share, c.head_dim);
  if (c.architecture == "llama" && c.n_rot != c.head_dim)
    return file_error("partial_rotary_factor: {} is not supported for llama", share);
  if (c.architecture.starts_with("qwen35")) QUIRE_CHECKED(read_sections(either("mrope_section"), c));
  return read_scaling(*r, c);
}

Status read_experts(const Keys& k, HfConfig& c) {
  const bool mixtral = c.class_name == "MixtralForCausalLM";
  if (c.architecture != "qwen3moe" && c.architecture != "qwen35moe" && !mixtral)
    return k.number("intermediate_size", 1, kMaxWidth, c.ffn);
  QUIRE_CHECKED(k.number(mixtral ? "num_local_experts" : "num_experts", 1, kMaxExperts, c.experts));
  QUIRE_CHECKED(k.number("num_experts_per_tok", 1, c.experts, c.experts_used));
  if (mixtral) {
    QUIRE_CHECKED(k.number("intermediate_size", 1, kMaxWidth, c.ffn));
    c.expert_ffn = c.ffn;
    return {};
  }
  QUIRE_CHECKED(k.number_or("intermediate_size", 0, 1, kMaxWidth, c.ffn));
  QUIRE_CHECKED(k.number("moe_intermediate_size", 1, kMaxWidth, c.expert_ffn));
  if (c.architecture == "qwen35moe") {
    QUIRE_CHECKED(k.number("shared_expert_intermediate_size", 1, kMaxWidth, c.shared_ffn));
    return {};
  }
  bool renormalised = false;
  int64_t step = 1;
  QUIRE_CHECKED(k.flag_or("norm_topk_prob", false, renormalised));
  if (!renormalised)
    return file_error(
        "norm_topk_prob: must be true; this architecture's experts are always weighted to a sum of 1");
  QUIRE_CHECKED(k.number_or("decoder_sparse_step", 1, 1, kMaxLayers, step));
  const json* dense = k.find("mlp_only_layers");
  if (step != 1 || (dense != nullptr && !dense->empty()))
    return file_error(
        "mlp_only_layers, decoder_sparse_step: dense layers among layers of experts are not supported");
  return {};
}

Status read_layer_types(const Keys& k, HfConfig& c) {
  c.recurrent.assign(static_cast<size_t>(c.layers), false);
  int64_t interval = 0;
  QUIRE_CHECKED(k.number_or("full_attention_interval", 4, 1, kMaxLayers, interval));
  const auto by_interval = [&](size_t i) { return (static_cast<int64_t>(i) + 1) % interval != 0; };
  const json* types = k.find("layer_types");
  if (types == nullptr) {
    for (size_t i = 0; i < c.recurrent.size(); ++i) c.recurrent[i] = by_interval(i);
  } else {
    if (!types->is_array() || types->size() != c.recurrent.size())
      return file_error("layer_types: does not have one entry for each of {} layers", c.layers);
    for (size_t i = 0; i < c.recurrent.size(); ++i) {
      const json& type = (*types)[i];
      c.recurrent[i] = type == json("linear_attention");
      if (!c.recurrent[i] && type != json("full_attention"))
        return file_error("layer_types: entry {} is neither linear_attention nor full_attention", i);
    }
  }
  c.interval = interval;
  for (size_t i = 0; i < c.recurrent.size(); ++i)
    if (c.recurrent[i] != by_interval(i)) c.interval = 0;
  return {};
}

Status read_delta(const Keys& k, HfConfig& c) {
  QUIRE_CHECKED(k.number_or("linear_conv_kernel_dim", 4, 2, 64, c.conv_kernel));
  QUIRE_CHECKED(k.number_or("linear_key_head_dim", 128, 1, kMaxHeadDim, c.key_dim));
  QUIRE_CHECKED(k.number_or("linear_value_head_dim", 128, 1, kMaxHeadDim, c.value_dim));
  QUIRE_CHECKED(k.number("linear_num_key_heads", 1, kMaxHeads, c.key_heads));
  QUIRE_CHECKED(k.number("linear_num_value_heads", 1, kMaxHeads, c.value_heads));
  if (c.value_heads % c.key_heads != 0)
    return file_error("linear_num_value_heads: {} is not a multiple of {} key heads", c.value_heads,
                      c.key_heads);
  QUIRE_CHECKED(read_layer_types(k, c));
  QUIRE_CHECKED(k.number_or("mtp_num_hidden_layers", 0, 0, kMaxLayers - c.layers, c.mtp_layers));
  if (c.mtp_layers > 1) {
    c.notes.push_back(fmt::format("{} MTP blocks are left out: files hold one at most", c.mtp_layers));
    c.mtp_layers = 0;
  }
  return {};
}

// Weights that were quantised in ways that are not read here; the tensors tell the others apart.
Status check_quantisation(const Keys& k) {
  const json* q = k.find("quantization_config");
  if (q == nullptr) q = k.find("compression_config");
  if (q == nullptr) return {};
  QUIRE_TRY(const std::string method, text_of(find_member(*q, "quant_method"), "quant_method"));
  if (method.empty() || method == "fp8" || method == "modelopt" || method == "modelopt_fp4" ||
      method == "compressed-tensors" || method == "mxfp4")
    return {};
  return file_error(
      "quant_method: {} is not supported (fp8, modelopt and compressed-tensors are); start from the original "
      "checkpoint",
      printable(method));
}

Status note_sliding_window(const Keys& k, HfConfig& c) {
  bool used = c.class_name == "MixtralForCausalLM";
  QUIRE_CHECKED(k.flag_or("use_sliding_window", used, used));
  if (used && k.find("sliding_window") != nullptr)
    c.notes.push_back("sliding_window is left out: every layer attends to the whole context");
  return {};
}

Result<std::string> class_name_of(const json& root) {
  const json* list = find_member(root, "architectures");
  if (list == nullptr || !list->is_array() || list->size() != 1 || !list->front().is_string())
    return file_error("architectures: does not name one model class");
  return list->front().get<std::string>();
}

}  // namespace

std::string supported_classes() {
  std::string names;
  for (const ClassName& c : kClasses) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.hf);
  return names;
}

std::optional<int64_t> first_id(const json* ids) {
  if (ids != nullptr && ids->is_array() && !ids->empty()) ids = &ids->front();
  if (ids == nullptr || !ids->is_number_unsigned() || ids->get<uint64_t>() > INT32_MAX) return std::nullopt;
  return ids->get<int64_t>();
}

Result<HfConfig> read_hf_config(const json& root) {
  HfConfig c;
  QUIRE_TRY(c.class_name, class_name_of(root));
  const auto* known = std::find_if(std::begin(kClasses), std::end(kClasses),
                                   [&](const ClassName& n) { return n.hf == c.class_name; });
  if (known == std::end(kClasses))
    return file_error("architecture {} is not supported (supported: {})", printable(c.class_name),
                      supported_classes());
  c.architecture = known->gguf;
  const json* text = find_member(root, "text_config");
  const Keys k(text != nullptr ? *text : root, root);

  QUIRE_TRY(const std::string activation, text_of(k.find("hidden_act"), "hidden_act"));
  if (!activation.empty() && activation != "silu")
    return file_error("hidden_act: {} is not supported (silu is)", printable(activation));
  QUIRE_CHECKED(check_quantisation(k));
  QUIRE_CHECKED(k.number("vocab_size", 1, kMaxVocab, c.vocab));
  QUIRE_CHECKED(k.number("hidden_size", 1, kMaxWidth, c.hidden));
  QUIRE_CHECKED(k.number("num_hidden_layers", 1, kMaxLayers, c.layers));
  QUIRE_CHECKED(k.number("max_position_embeddings", 1, INT32_MAX, c.context));
  if (k.find("rms_norm_eps") == nullptr) return file_error("rms_norm_eps: missing");
  QUIRE_CHECKED(positive_or(k.find("rms_norm_eps"), "rms_norm_eps", 0, c.rms_eps));
  QUIRE_CHECKED(k.flag_or("tie_word_embeddings", false, c.tied));
  QUIRE_CHECKED(read_attention(k, c));
  QUIRE_CHECKED(read_rope(k, c));
  QUIRE_CHECKED(read_experts(k, c));
  if (c.architecture.starts_with("qwen35")) QUIRE_CHECKED(read_delta(k, c));
  QUIRE_CHECKED(note_sliding_window(k, c));
  c.bos = first_id(k.find("bos_token_id"));
  c.eos = first_id(k.find("eos_token_id"));
  c.pad = first_id(k.find("pad_token_id"));
  return c;
}

}  // namespace quire::convert
