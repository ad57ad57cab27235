#include "convert/hf_config.h"

#include <algorithm>
#include <cmath>

#include "convert/hf_quantisation.h"
#include "convert/hf_rope.h"
#include "convert/hf_vision.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

const Architecture* find_class(std::string_view name) {
  if (name.empty()) return nullptr;  // rows with one class have room for another
  for (const Architecture& a : architectures())
    if (std::find(a.classes.begin(), a.classes.end(), name) != a.classes.end()) return &a;
  return nullptr;
}

constexpr int64_t kMaxLayers = 512, kMaxExperts = 1024, kMaxWidth = 1 << 20, kMaxHeads = 1024, kMaxHeadDim = 1024,
                  kMaxVocab = 1 << 22;

// A number that only some classes have a default for.
Status number(const HfKeys& k, std::string_view key, int64_t absent, int64_t hi, int64_t& out) {
  return absent > 0 ? k.number_or(key, absent, 1, hi, out) : k.number(key, 1, hi, out);
}

// As newer versions of transformers save it: what single layers have otherwise than the rest, by their numbers. Those
// that are named must have the same heads (check_layer_heads: and be those without a window).
Status read_layer_heads(const json& layers, HfConfig& c) {
  constexpr std::string_view kKey = "per_layer_config";
  if (!layers.is_object()) return file_error("{}: is no object", kKey);
  int64_t head_dim = 0, kv_heads = 0;
  for (const auto& [number, layer] : layers.items()) {
    if (!layer.is_object()) return file_error("{}: entry {} is no object", kKey, printable(number));
    const HfKeys own(layer);
    int64_t d = 0, kv = 0;
    QUIRE_CHECKED(own.number_or("head_dim", c.window_head_dim, 2, kMaxHeadDim, d).context(kKey));
    QUIRE_CHECKED(own.number_or("num_key_value_heads", c.window_kv_heads, 1, kMaxHeads, kv).context(kKey));
    if (head_dim != 0 && (d != head_dim || kv != kv_heads))
      return file_error("{}: layers with heads of {} and of {} elements, {} and {} of them, are not supported", kKey,
                        head_dim, d, kv_heads, kv);
    head_dim = d;
    kv_heads = kv;
  }
  if (head_dim == 0) return {};
  if (head_dim % 2 != 0 || c.heads % kv_heads != 0)
    return file_error("{}: {} KV heads of {} elements for {} heads are not supported", kKey, kv_heads, head_dim,
                      c.heads);
  c.head_dim = head_dim;
  c.kv_heads = kv_heads;
  return {};
}

// Whether all layers without a window, and no others, are named where single layers differ.
Status check_layer_heads(const HfKeys& k, const HfConfig& c) {
  const json* layers = k.find("per_layer_config");
  if (layers == nullptr || (c.head_dim == c.window_head_dim && c.kv_heads == c.window_kv_heads)) return {};
  for (int64_t i = 0; i < c.layers; ++i)
    if (layers->contains(std::to_string(i)) == c.has_window(i))
      return file_error("per_layer_config: layer {} {} a window, and heads as layers with{} one have are not supported",
                        i, c.has_window(i) ? "has" : "has not", c.has_window(i) ? "out" : "");
  return {};
}

// What was read is of layers with a window: those that attend to all have keys of their own.
Status read_window_heads(const HfKeys& k, HfConfig& c) {
  constexpr int64_t kGlobalHeadDim = 512;
  c.window_kv_heads = c.kv_heads;
  c.window_head_dim = c.head_dim;
  QUIRE_CHECKED(k.flag_or("attention_k_eq_v", false, c.keys_as_values));
  if (const json* layers = k.find("per_layer_config"); layers != nullptr) return read_layer_heads(*layers, c);
  QUIRE_CHECKED(k.number_or("global_head_dim", kGlobalHeadDim, 2, kMaxHeadDim, c.head_dim));
  if (c.head_dim % 2 != 0) return file_error("global_head_dim: {} is not even", c.head_dim);
  if (!c.keys_as_values) return {};
  QUIRE_CHECKED(k.number_or("num_global_key_value_heads", c.kv_heads, 1, kMaxHeads, c.kv_heads));
  if (c.heads % c.kv_heads == 0) return {};
  return file_error("num_global_key_value_heads: {} heads cannot share {} KV heads", c.heads, c.kv_heads);
}

// What only the small models have: embeddings of each layer, and layers that attend to the keys and values of others.
Status read_layers_alone(const HfKeys& k, HfConfig& c) {
  constexpr std::string_view kWidth = "hidden_size_per_layer_input", kVocab = "vocab_size_per_layer_input";
  int64_t vocab = c.vocab;
  const int64_t absent = k.is_null(kWidth) ? 0 : c.row->folder_defaults.per_layer;
  QUIRE_CHECKED(k.number_or(kWidth, absent, 0, kMaxWidth / c.layers, c.d_per_layer));
  if (c.d_per_layer > 0) QUIRE_CHECKED(k.number_or(kVocab, c.row->folder_defaults.vocab, 1, kMaxVocab, vocab));
  if (vocab != c.vocab)
    return file_error("{}: {} is not supported, only as many as vocab_size, {}", kVocab, vocab, c.vocab);
  QUIRE_CHECKED(k.number_or("num_kv_shared_layers", 0, 0, c.layers - 1, c.shared_kv_layers));
  bool wide = false;
  QUIRE_CHECKED(k.flag_or("use_double_wide_mlp", false, wide));
  if (wide) c.shared_ffn_factor = 2;
  return {};
}

// Whether there is a layer of each kind that the last ones can take keys and values of.
Status check_shared_kv(const HfConfig& c) {
  const int64_t first = c.layers - c.shared_kv_layers;
  for (int64_t i = first; i < c.layers; ++i) {
    bool found = false;
    for (int64_t j = 0; j < first; ++j) found |= c.has_window(j) == c.has_window(i);
    if (!found)
      return file_error(
          "num_kv_shared_layers: layer {} is one of {} without keys and values, and no layer before these {} a window",
          i, c.shared_kv_layers, c.has_window(i) ? "has" : "is without");
  }
  return {};
}

Status read_attention(const HfKeys& k, HfConfig& c) {
  const FolderDefaults& absent = c.row->folder_defaults;
  QUIRE_CHECKED(number(k, "num_attention_heads", absent.heads, kMaxHeads, c.heads));
  // Absent, it is a number of its own in most classes.
  const bool as_heads = c.class_name == "LlamaForCausalLM" || absent.kv_heads < 0;
  if (!as_heads && !k.is_null("num_key_value_heads"))
    QUIRE_CHECKED(number(k, "num_key_value_heads", absent.kv_heads, kMaxHeads, c.kv_heads));
  else
    QUIRE_CHECKED(k.number_or("num_key_value_heads", c.heads, 1, kMaxHeads, c.kv_heads));
  if (c.heads % c.kv_heads != 0)
    return file_error("num_key_value_heads: {} heads cannot share {} KV heads", c.heads, c.kv_heads);
  const int64_t default_dim = absent.head_dim > 0 ? absent.head_dim : c.hidden / c.heads;
  QUIRE_CHECKED(k.number_or("head_dim", default_dim, 2, kMaxHeadDim, c.head_dim));
  if (c.head_dim < 2 || c.head_dim % 2 != 0) return file_error("head_dim: {} is not even", c.head_dim);
  if (c.row->own_window_heads) QUIRE_CHECKED(read_window_heads(k, c));
  c.qk_norm = c.row->qk_norm == Presence::kAlways;
  if (c.row->qk_norm == Presence::kMaybe) QUIRE_CHECKED(k.flag_or("use_qk_norm", false, c.qk_norm));
  bool gated = true;
  QUIRE_CHECKED(k.flag_or("attn_output_gate", true, gated));
  if (c.row->gated_query && !gated) return file_error("attn_output_gate: false is not supported by this architecture");
  return {};
}

Status read_biases(const HfKeys& k, HfConfig& c) {
  c.qkv_bias = c.row->qkv_bias;
  if (c.row->qkv_bias || c.class_name == "MixtralForCausalLM") return {};  // they have no such key
  QUIRE_CHECKED(k.flag_or("attention_bias", c.row->folder_defaults.attention_bias, c.qkv_bias));
  c.output_bias = c.qkv_bias && c.row->output_bias;
  return c.row->name == "llama" ? k.flag_or("mlp_bias", false, c.mlp_bias) : Status();
}

// Qwen3-MoE and Mixtral take either name; transformers 5 writes num_local_experts for both.
Status read_expert_count(const HfKeys& k, HfConfig& c) {
  const bool either = !c.row->shared_expert && k.find("num_local_experts") != nullptr;
  if (!either) return k.number("num_experts", 1, kMaxExperts, c.experts);
  QUIRE_CHECKED(k.number("num_local_experts", 1, kMaxExperts, c.experts));
  int64_t other = 0;
  QUIRE_CHECKED(k.number_or("num_experts", c.experts, 1, kMaxExperts, other));
  if (other == c.experts) return {};
  return file_error("num_experts: {} and num_local_experts: {} contradict each other", other, c.experts);
}

// As DeepSeek-V3 names them: a router of any kind, and shared experts as wide as some of the others together.
Status read_routed_experts(const HfKeys& k, HfConfig& c) {
  QUIRE_CHECKED(k.number("n_routed_experts", 1, kMaxExperts, c.experts));
  QUIRE_CHECKED(k.number("num_experts_per_tok", 1, c.experts, c.experts_used));
  QUIRE_CHECKED(k.number("moe_intermediate_size", 1, kMaxWidth, c.expert_ffn));
  QUIRE_CHECKED(k.number("n_shared_experts", 1, kMaxExperts, c.shared_experts));
  c.shared_ffn = c.shared_experts * c.expert_ffn;
  QUIRE_CHECKED(k.number("intermediate_size", 1, kMaxWidth, c.ffn));
  QUIRE_CHECKED(k.number_or("first_k_dense_replace", 1, 0, c.layers - 1, c.dense_layers));
  QUIRE_CHECKED(k.number_or("n_group", 1, 1, c.experts, c.groups));
  QUIRE_CHECKED(k.number_or("topk_group", 1, 1, c.groups, c.used_groups));
  if (c.experts % c.groups != 0 || c.experts / c.groups * c.used_groups < c.experts_used)
    return file_error(
        "n_group: {} experts in {} groups, of which {} may be used by a token of {} experts, do not go up", c.experts,
        c.groups, c.used_groups, c.experts_used);
  QUIRE_CHECKED(positive_or(k.find("routed_scaling_factor"), "routed_scaling_factor", 1, c.routed_scale));
  return k.flag_or("norm_topk_prob", true, c.normalised);
}

// As gpt-oss names them.
Status read_oai_experts(const HfKeys& k, HfConfig& c) {
  QUIRE_CHECKED(read_expert_count(k, c));
  const std::string_view used = k.find("num_experts_per_tok") == nullptr ? "experts_per_token" : "num_experts_per_tok";
  QUIRE_CHECKED(k.number(used, 1, c.experts, c.experts_used));
  QUIRE_CHECKED(k.number("intermediate_size", 1, kMaxWidth, c.ffn));
  c.expert_ffn = c.ffn;
  // What operators compute (GateActivation::kSwigluOai).
  constexpr std::pair<std::string_view, double> kComputed[] = {{"swiglu_limit", 7}, {"swiglu_alpha", 1.702}};
  for (const auto& [key, computed] : kComputed) {
    double said = 0;
    QUIRE_CHECKED(positive_or(k.find(key), key, computed, said));
    if (said != computed) return file_error("{}: {} is not supported ({} is)", key, said, computed);
  }
  return {};
}

// As Gemma 4 names them: beside a dense feed-forward, where a flag says so.
Status read_experts_beside(const HfKeys& k, HfConfig& c) {
  QUIRE_CHECKED(k.number("intermediate_size", 1, kMaxWidth, c.ffn));
  bool experts = false;
  QUIRE_CHECKED(k.flag_or("enable_moe_block", false, experts));
  if (!experts) return {};
  QUIRE_CHECKED(k.number("num_experts", 1, kMaxExperts, c.experts));
  QUIRE_CHECKED(k.number("top_k_experts", 1, c.experts, c.experts_used));
  const std::string_view width =
      k.find("moe_intermediate_size") == nullptr ? "expert_intermediate_size" : "moe_intermediate_size";
  return k.number(width, 1, kMaxWidth, c.expert_ffn);
}

Status read_experts(const HfKeys& k, HfConfig& c) {
  if (c.row->dense_beside_experts) return read_experts_beside(k, c);
  if (c.row->any_router) return read_routed_experts(k, c);
  if (c.row->oai_experts) return read_oai_experts(k, c);
  const bool mixtral = c.class_name == "MixtralForCausalLM";
  if (c.row->experts != Presence::kAlways && !mixtral) return k.number("intermediate_size", 1, kMaxWidth, c.ffn);
  QUIRE_CHECKED(read_expert_count(k, c));
  QUIRE_CHECKED(k.number("num_experts_per_tok", 1, c.experts, c.experts_used));
  if (mixtral) {
    QUIRE_CHECKED(k.number("intermediate_size", 1, kMaxWidth, c.ffn));
    c.expert_ffn = c.ffn;
    return {};
  }
  QUIRE_CHECKED(k.number_or("intermediate_size", 0, 1, kMaxWidth, c.ffn));
  QUIRE_CHECKED(k.number("moe_intermediate_size", 1, kMaxWidth, c.expert_ffn));
  if (c.row->shared_expert) {
    QUIRE_CHECKED(k.number("shared_expert_intermediate_size", 1, kMaxWidth, c.shared_ffn));
    if (!c.row->grouped_value_heads) return {};  // they have none of the keys below
  }
  bool renormalised = false;
  int64_t step = 1;
  QUIRE_CHECKED(k.flag_or("norm_topk_prob", c.row->shared_expert, renormalised));
  if (!renormalised)
    return file_error("norm_topk_prob: must be true; this architecture's experts are always weighted to a sum of 1");
  QUIRE_CHECKED(k.number_or("decoder_sparse_step", 1, 1, kMaxLayers, step));
  const json* dense = k.find("mlp_only_layers");
  if (step != 1 || (dense != nullptr && !dense->empty()))
    return file_error("mlp_only_layers, decoder_sparse_step: dense layers among layers of experts are not supported");
  return {};
}

Status read_layer_types(const HfKeys& k, HfConfig& c) {
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

// What the delta net's output is gated by; "swish" is another name of SiLU. (That of attention is always a sigmoid.)
Status check_delta_gate(const HfKeys& k) {
  constexpr std::string_view kKey = "output_gate_type";
  QUIRE_TRY(const std::string gate, text_of(k.find(kKey), kKey));
  if (gate.empty() || gate == "swish" || gate == "silu") return {};
  return file_error("{}: {} is not supported (swish is)", kKey, printable(gate));
}

Status read_mtp(const HfKeys& k, HfConfig& c) {
  QUIRE_CHECKED(k.number_or("mtp_num_hidden_layers", 0, 0, kMaxLayers - c.layers, c.mtp_layers));
  bool own_embeddings = false;
  QUIRE_CHECKED(k.flag_or("mtp_use_dedicated_embeddings", false, own_embeddings));
  if (c.mtp_layers > 1)
    c.notes.push_back(fmt::format("{} MTP blocks are left out: files hold one at most", c.mtp_layers));
  if (c.mtp_layers == 1 && own_embeddings)
    c.notes.push_back(
        "the MTP block is left out: embeddings of its own (mtp_use_dedicated_embeddings) are not supported");
  if (c.mtp_layers > 1 || own_embeddings) c.mtp_layers = 0;
  return {};
}

Status read_delta(const HfKeys& k, HfConfig& c) {
  QUIRE_CHECKED(k.number_or("linear_conv_kernel_dim", 4, 2, 64, c.conv_kernel));
  QUIRE_CHECKED(k.number_or("linear_key_head_dim", 128, 1, kMaxHeadDim, c.key_dim));
  QUIRE_CHECKED(k.number_or("linear_value_head_dim", 128, 1, kMaxHeadDim, c.value_dim));
  QUIRE_CHECKED(k.number("linear_num_key_heads", 1, kMaxHeads, c.key_heads));
  QUIRE_CHECKED(k.number("linear_num_value_heads", 1, kMaxHeads, c.value_heads));
  if (c.value_heads % c.key_heads != 0)
    return file_error("linear_num_value_heads: {} is not a multiple of {} key heads", c.value_heads, c.key_heads);
  QUIRE_CHECKED(read_layer_types(k, c));
  QUIRE_CHECKED(check_delta_gate(k));
  return read_mtp(k, c);
}

// Which layers attend to a window, where the architecture has such layers.
Status read_windows(const HfKeys& k, HfConfig& c) {
  if (k.is_null("sliding_window")) return {};
  QUIRE_CHECKED(k.number_or("sliding_window", c.row->folder_defaults.window, 1, INT32_MAX, c.window));
  int64_t interval = 0;
  QUIRE_CHECKED(k.number_or("sliding_window_pattern", c.row->window_interval, 1, kMaxLayers, interval));
  c.windowed.resize(static_cast<size_t>(c.layers));
  const json* types = k.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != c.windowed.size()))
    return file_error("layer_types: does not have one entry for each of {} layers", c.layers);
  c.window_interval = interval;
  for (size_t i = 0; i < c.windowed.size(); ++i) {
    const bool by_interval = (static_cast<int64_t>(i) + 1) % interval != 0;
    c.windowed[i] = types == nullptr ? by_interval : (*types)[i] == json("sliding_attention");
    if (types != nullptr && !c.windowed[i] && (*types)[i] != json("full_attention"))
      return file_error("layer_types: entry {} is neither sliding_attention nor full_attention", i);
    if (c.row->last_attends_to_all && i + 1 == c.windowed.size()) c.windowed[i] = false;
    if (c.windowed[i] != by_interval) c.window_interval = 0;
  }
  return {};
}

// Attention to later positions, said by a flag or in a word; "vision" is about images alone.
Status check_direction(const HfKeys& k) {
  constexpr std::string_view kKey = "use_bidirectional_attention";
  const json* v = k.find(kKey);
  if (v != nullptr && v->is_string() && *v == json("vision")) return {};
  bool bidirectional = v != nullptr && *v == json("all");
  if (!bidirectional) QUIRE_CHECKED(k.flag_or(kKey, false, bidirectional));
  if (!bidirectional) return {};
  return file_error("{}: attention to later positions is not supported", kKey);
}

// Scores of another scale, a cap of logits, and what no operator computes beside these.
Status read_scores(const HfKeys& k, HfConfig& c) {
  if (!c.row->capped_logits) return {};
  if (k.find("attn_logit_softcapping") != nullptr)
    return file_error("attn_logit_softcapping: soft caps of attention are not supported");
  QUIRE_CHECKED(positive_or(k.find("final_logit_softcapping"), "final_logit_softcapping", 0, c.logit_soft_cap));
  QUIRE_CHECKED(check_direction(k));
  if (!c.row->scaled_scores) return {};
  double scalar = 0;
  QUIRE_CHECKED(positive_or(k.find("query_pre_attn_scalar"), "query_pre_attn_scalar", 256, scalar));
  if (scalar != static_cast<double>(c.head_dim)) c.score_scale = 1 / std::sqrt(scalar);
  return {};
}

// Whether some layer looks at no more than a window. Source: the configuration classes; Qwen3-MoE has the
// same window in all layers, Qwen2 and Qwen3 from max_window_layers on.
Status has_sliding_layers(const HfKeys& k, const HfConfig& c, bool& out) {
  out = c.class_name == "MixtralForCausalLM" || c.class_name == "MistralForCausalLM" || c.row->name == "phi3";
  if (out) return {};
  QUIRE_CHECKED(k.flag_or("use_sliding_window", false, out));
  if (c.row->name == "qwen3moe") return {};
  if (const json* types = k.find("layer_types"); types != nullptr && types->is_array()) {
    out = std::find(types->begin(), types->end(), json("sliding_attention")) != types->end();
    return {};
  }
  int64_t first = 0;
  QUIRE_CHECKED(k.number_or("max_window_layers", 28, 0, INT32_MAX, first));
  out = out && first < c.layers;
  return {};
}

// A sequence of as many tokens as the window does not notice it. So the context ends there: beyond it an
// engine would compute something else, as it knows no windows.
Status read_sliding_window(const HfKeys& k, HfConfig& c) {
  if (c.row->window_interval > 0) return read_windows(k, c);
  if (c.class_name == "LlamaForCausalLM" || c.row->delta_net) return {};
  bool sliding = false;
  int64_t window = 0;
  QUIRE_CHECKED(has_sliding_layers(k, c, sliding));
  const bool none = c.class_name == "MixtralForCausalLM" || c.row->name == "phi3" || k.is_null("sliding_window");
  QUIRE_CHECKED(k.number_or("sliding_window", none ? c.context : 4096, 1, INT32_MAX, window));
  if (!sliding || window >= c.context) return {};
  c.notes.push_back(fmt::format(
      "context_length is {} instead of {}: the sliding_window, to whose end all layers attend to everything", window,
      c.context));
  c.context = window;
  return {};
}

Result<std::string> class_name_of(const json& root) {
  const json* list = find_member(root, "architectures");
  if (list == nullptr || !list->is_array() || list->size() != 1 || !list->front().is_string())
    return file_error("architectures: does not name one model class");
  return list->front().get<std::string>();
}

bool is_wrapper(const HfConfig& c) {
  return c.class_name.ends_with("ForConditionalGeneration");
}

// What the text model is made from: of the hybrids' folders often a part of the file.
Result<const json*> model_part(const json& root, const HfConfig& c) {
  const json* text = find_member(root, "text_config");
  if (text == nullptr && is_wrapper(c)) return file_error("text_config: missing; {} is made from it", c.class_name);
  if (text == nullptr || (!c.row->delta_net && !is_wrapper(c))) return &root;
  if (!text->is_object()) return file_error("text_config: is no object");
  return text;
}

}  // namespace

ModelSizes HfConfig::sizes(bool of_window) const {
  const bool own = of_window && window_head_dim > 0;
  return {.vocab = vocab,
          .d_model = hidden,
          .layers = layers,
          .d_per_layer = d_per_layer,
          .heads = heads,
          .kv_heads = own ? window_kv_heads : kv_heads,
          .head_dim = own ? window_head_dim : head_dim,
          .n_rot = n_rot,
          .gated_query = row->gated_query,
          .conv_kernel = conv_kernel,
          .key_heads = key_heads,
          .value_heads = value_heads,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .d_ff = ffn,
          .experts = experts,
          .d_ff_expert = expert_ffn,
          .d_ff_shared = shared_ffn};
}

ModelSizes HfConfig::layer_sizes(int64_t block) const {
  ModelSizes s = sizes(has_window(block));
  s.d_ff = ffn_width(block);
  return s;
}

std::string supported_classes() {
  std::string names;
  for (const Architecture& a : architectures())
    for (const std::string_view c : a.classes)
      if (!c.empty()) names += fmt::format("{}{}", names.empty() ? "" : ", ", c);
  return names;
}

void add_ids(const json* ids, std::vector<int64_t>& out) {
  if (ids == nullptr) return;
  const auto add = [&](const json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX) out.push_back(id.get<int64_t>());
  };
  if (!ids->is_array()) return add(*ids);
  for (const json& id : *ids) add(id);
}

std::optional<int64_t> first_id(const json* ids) {
  if (ids != nullptr && ids->is_array() && !ids->empty()) ids = &ids->front();
  std::vector<int64_t> found;
  if (ids == nullptr || !ids->is_array()) add_ids(ids, found);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

Result<HfConfig> read_hf_config(const json& root) {
  HfConfig c;
  QUIRE_TRY(c.class_name, class_name_of(root));
  c.row = find_class(c.class_name);
  if (c.row == nullptr)
    return file_error("architecture {} is not supported (supported: {})", printable(c.class_name), supported_classes());
  QUIRE_TRY(const json* part, model_part(root, c));
  const HfKeys k(*part);
  const std::string_view activation_key = c.row->gelu ? "hidden_activation" : "hidden_act";
  const std::string_view own_activation = c.row->gelu ? "gelu_pytorch_tanh" : "silu";
  QUIRE_TRY(const std::string activation, text_of(k.find(activation_key), activation_key));
  if (!activation.empty() && activation != own_activation)
    return file_error("{}: {} is not supported ({} is)", activation_key, printable(activation), own_activation);
  QUIRE_CHECKED(read_quantisation(root, k, c));
  const FolderDefaults& absent = c.row->folder_defaults;
  QUIRE_CHECKED(number(k, "vocab_size", absent.vocab, kMaxVocab, c.vocab));
  QUIRE_CHECKED(k.number("hidden_size", 1, kMaxWidth, c.hidden));
  QUIRE_CHECKED(k.number("num_hidden_layers", 1, kMaxLayers, c.layers));
  QUIRE_CHECKED(number(k, "max_position_embeddings", absent.context, INT32_MAX, c.context));
  if (absent.rms_eps == 0 && k.find("rms_norm_eps") == nullptr) return file_error("rms_norm_eps: missing");
  QUIRE_CHECKED(positive_or(k.find("rms_norm_eps"), "rms_norm_eps", absent.rms_eps, c.rms_eps));
  // A wrapper owns its head: the same key inside text_config is not asked.
  QUIRE_CHECKED((is_wrapper(c) ? HfKeys(root) : k).flag_or("tie_word_embeddings", absent.tied, c.tied));
  if (c.row->per_layer_embeddings) QUIRE_CHECKED(read_layers_alone(k, c));
  QUIRE_CHECKED(read_attention(k, c));
  QUIRE_CHECKED(read_biases(k, c));
  QUIRE_CHECKED(read_hf_rope(k, c));
  QUIRE_CHECKED(read_experts(k, c));
  if (c.row->delta_net) QUIRE_CHECKED(read_delta(k, c));
  QUIRE_CHECKED(read_scores(k, c));
  QUIRE_CHECKED(read_sliding_window(k, c));
  if (c.row->own_window_heads) QUIRE_CHECKED(check_layer_heads(k, c));
  QUIRE_CHECKED(check_shared_kv(c));
  const auto id = [&](std::string_view key) {
    const json* v = k.find(key);
    return first_id(v != nullptr ? v : find_member(root, key));
  };
  c.deepstack_levels = deepstack_levels(root);
  for (const json* level : {&root, part}) add_ids(find_member(*level, "eos_token_id"), c.ends);
  c.bos = id("bos_token_id");
  c.eos = id("eos_token_id");
  c.pad = id("pad_token_id");
  return c;
}

}  // namespace quire::convert
