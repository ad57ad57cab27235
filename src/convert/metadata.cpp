#include "convert/metadata.h"

#include <cctype>
#include <cmath>
#include <filesystem>
#include <memory>

#include "ops/sampling/params.h"

namespace quire::convert {
namespace {

using nlohmann::json;

class Keys {
 public:
  Keys(gguf::Writer& w, std::string_view architecture) : w_(w), architecture_(architecture) {}

  void u32(std::string_view key, int64_t x) { w_.add(full(key), static_cast<uint32_t>(x)); }
  void u32_if_any(std::string_view key, int64_t x) {
    if (x > 0) u32(key, x);
  }
  void f32(std::string_view key, double x) { w_.add(full(key), static_cast<float>(x)); }
  void text(std::string_view key, std::string_view x) { w_.add_string(full(key), x); }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }

 private:
  gguf::Writer& w_;
  std::string architecture_;
};

void write_rope(const HfConfig& c, Keys& k, gguf::Writer& w) {
  k.f32("rope.freq_base", c.rope_theta);
  if (c.local_rope_theta > 0) k.f32("rope.freq_base_swa", c.local_rope_theta);
  if (c.row->name == "llama" || c.n_rot != c.head_dim || c.row->rotary_share > 0 || c.row->own_window_heads)
    k.u32("rope.dimension_count", c.n_rot);
  if (c.row->own_window_heads) k.u32("rope.dimension_count_swa", c.window_head_dim);
  if (c.row->rope_sections) w.add_array(k.full("rope.dimension_sections"), std::span<const int32_t>(c.rope_sections));
  if (c.rope.kind == RopeScaling::Kind::kLongRope) {  // divisors are tensors
    k.u32("rope.scaling.original_context_length", c.rope.original_context);
    k.f32("rope.scaling.attn_factor", c.rope.attn_factor);
    return;
  }
  const bool yarn = c.rope.kind == RopeScaling::Kind::kYarn;
  if (!yarn && c.rope.kind != RopeScaling::Kind::kLinear) return;  // llama3 is a tensor of divisors
  k.text("rope.scaling.type", yarn ? "yarn" : "linear");
  k.f32("rope.scaling.factor", c.rope.factor);
  if (!yarn) return;
  k.u32("rope.scaling.original_context_length", c.rope.original_context);
  if (c.rope.attn_factor != 1) k.f32("rope.scaling.attn_factor", c.rope.attn_factor);
}

// Which layers attend to a window: every so many-th does not, or a list.
void write_windows(const HfConfig& c, Keys& k, gguf::Writer& w) {
  if (c.window == 0) return;
  k.u32("attention.sliding_window", c.window);
  const bool list_always = c.row->own_window_heads;
  if (!list_always && c.window_interval == c.row->window_interval) return;
  if (!list_always && c.window_interval > 0) return k.u32("attention.sliding_window_pattern", c.window_interval);
  const auto list = std::make_unique<bool[]>(c.windowed.size());
  std::copy(c.windowed.begin(), c.windowed.end(), list.get());
  w.add_array(k.full("attention.sliding_window_pattern"), std::span<const bool>(list.get(), c.windowed.size()));
}

// Heads: of each layer, where layers with a window have others.
void write_heads(const HfConfig& c, Keys& k, gguf::Writer& w) {
  k.u32("attention.head_count", c.heads);
  if (c.keys_as_values) {
    std::vector<int32_t> list;
    for (int64_t i = 0; i < c.layers; ++i)
      list.push_back(static_cast<int32_t>(c.has_window(i) ? c.window_kv_heads : c.kv_heads));
    w.add_array(k.full("attention.head_count_kv"), std::span<const int32_t>(list));
  } else {
    k.u32("attention.head_count_kv", c.kv_heads);
  }
  k.u32("attention.key_length", c.head_dim);
  k.u32("attention.value_length", c.head_dim);
  if (c.window_head_dim == 0) return;
  k.u32("attention.key_length_swa", c.window_head_dim);
  k.u32("attention.value_length_swa", c.window_head_dim);
  k.u32("attention.shared_kv_layers", c.shared_kv_layers);
  k.u32("embedding_length_per_layer_input", c.d_per_layer);
}

// The width of the feed-forward: of each layer, where some are wider.
void write_ffn(const HfConfig& c, Keys& k, gguf::Writer& w) {
  if (c.shared_ffn_factor == 1) return k.u32_if_any("feed_forward_length", c.ffn);
  std::vector<int32_t> list;
  for (int64_t i = 0; i < c.layers; ++i) list.push_back(static_cast<int32_t>(c.ffn_width(i)));
  w.add_array(k.full("feed_forward_length"), std::span<const int32_t>(list));
}

void write_router(const HfConfig& c, Keys& k, gguf::Writer& w) {
  constexpr int64_t kSigmoid = 2;
  k.u32("leading_dense_block_count", c.dense_layers);
  k.u32("expert_gating_func", kSigmoid);
  k.f32("expert_weights_scale", c.routed_scale);
  w.add(k.full("expert_weights_norm"), c.normalised);
  if (c.groups == 1) return;
  k.u32("expert_group_count", c.groups);
  k.u32("expert_group_used_count", c.used_groups);
}

void write_hyperparameters(const HfConfig& c, gguf::Writer& w) {
  Keys k(w, c.row->name);
  k.u32("block_count", c.blocks());
  k.u32("context_length", c.context);
  k.u32("embedding_length", c.hidden);
  write_ffn(c, k, w);
  write_heads(c, k, w);
  k.f32("attention.layer_norm_rms_epsilon", c.rms_eps);
  write_rope(c, k, w);
  k.u32_if_any("n_deepstack_layers", c.deepstack_levels);  // llama.cpp refuses a tower with more than is said here
  write_windows(c, k, w);
  if (c.logit_soft_cap > 0) k.f32("final_logit_softcapping", c.logit_soft_cap);
  if (c.score_scale > 0) k.f32("attention.scale", c.score_scale);
  if (c.row->name == "llama") k.u32("vocab_size", c.vocab);
  k.u32_if_any("expert_count", c.experts);
  k.u32_if_any("expert_used_count", c.experts_used);
  if (!c.row->experts_as_wide) k.u32_if_any("expert_feed_forward_length", c.expert_ffn);
  if (c.shared_experts > 0)
    k.u32("expert_shared_count", c.shared_experts);
  else
    k.u32_if_any("expert_shared_feed_forward_length", c.shared_ffn);
  if (c.row->any_router) write_router(c, k, w);
  if (!c.row->delta_net) return;
  k.u32_if_any("nextn_predict_layers", c.mtp_layers);
  k.u32("ssm.conv_kernel", c.conv_kernel);
  k.u32("ssm.state_size", c.key_dim);
  k.u32("ssm.group_count", c.key_heads);
  k.u32("ssm.time_step_rank", c.value_heads);
  k.u32("ssm.inner_size", c.value_heads * c.value_dim);
  if (c.interval > 0) {
    k.u32("full_attention_interval", c.interval);
    return;
  }
  std::vector<int32_t> map(c.recurrent.begin(), c.recurrent.end());
  map.resize(static_cast<size_t>(c.blocks()), 0);
  w.add_array(k.full("attention.recurrent_layers"), std::span<const int32_t>(map));
}

// What byte-level BPE does not have. Keys of our own where other programs know none: they then do something near it.
void write_sentencepiece(const HfTokenizer& t, gguf::Writer& w) {
  w.add_array("tokenizer.ggml.scores", std::span<const float>(t.scores));
  w.add("tokenizer.ggml.add_space_prefix", t.space_prefix != SpacePrefix::kNever);
  if (t.remove_extra_spaces) w.add("tokenizer.ggml.remove_extra_whitespaces", true);
  if (t.space_prefix != SpacePrefix::kNever && t.space_prefix != SpacePrefix::kPrepend)
    w.add_string("quire.tokenizer.space_prefix", name_of(t.space_prefix));
  // Both lists, so that nobody goes by the model's name where they are empty.
  w.add_array("quire.tokenizer.strip_before", std::span<const int32_t>(t.strip_before));
  w.add_array("quire.tokenizer.strip_behind", std::span<const int32_t>(t.strip_behind));
}

void write_tokenizer(const HfTokenizer& t, gguf::Writer& w) {
  w.add_string("tokenizer.ggml.model", t.model);
  w.add_string("tokenizer.ggml.pre", t.pre);
  const std::vector<std::string_view> tokens(t.tokens.begin(), t.tokens.end()),
      merges(t.merges.begin(), t.merges.end());
  w.add_strings("tokenizer.ggml.tokens", tokens);
  w.add_array("tokenizer.ggml.token_type", std::span<const int32_t>(t.types));
  if (t.model == "gpt2" || !merges.empty()) w.add_strings("tokenizer.ggml.merges", merges);
  if (t.model == "llama") write_sentencepiece(t, w);
  const auto id = [&](std::string_view key, std::optional<int64_t> x) {
    if (x) w.add(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<uint32_t>(*x));
  };
  id("bos", t.bos);
  id("eos", t.eos);
  id("eot", t.eot);
  id("eom", t.eom);
  id("unknown", t.unknown);
  id("padding", t.pad);
  if (!t.ends.empty()) w.add_array("quire.tokenizer.end_token_ids", std::span<const int32_t>(t.ends));
  if (t.unknown_byte) w.add("quire.tokenizer.unknown_byte_token_id", static_cast<uint32_t>(*t.unknown_byte));
  w.add("tokenizer.ggml.add_bos_token", t.add_bos);
  if (t.add_eos) w.add("tokenizer.ggml.add_eos_token", *t.add_eos);
  if (!t.chat_template.empty()) w.add_string("tokenizer.chat_template", t.chat_template);
  if (t.chat_templates.empty()) return;
  std::vector<std::string_view> names;
  for (const auto& [name, source] : t.chat_templates) {
    names.push_back(name);
    w.add_string(fmt::format("tokenizer.chat_template.{}", name), source);
  }
  w.add_strings("tokenizer.chat_templates", names);
}

// What the makers recommend, unless they say not to sample.
void write_sampling(const json& generation, gguf::Writer& w) {
  if (const json* sample = find_member(generation, "do_sample"); sample != nullptr && *sample == json(false)) return;
  for (const SamplingField& field : kSamplingFields) {
    const json* v = field.gguf.empty() ? nullptr : find_member(generation, field.name);
    if (v == nullptr || !v->is_number()) continue;
    const std::string key(field.gguf);
    if (field.is_integer()) {
      if (v->is_number_unsigned() && v->get<uint64_t>() <= INT32_MAX) w.add(key, v->get<int32_t>());
    } else if (const auto x = static_cast<float>(v->get<double>()); std::isfinite(x)) {
      w.add(key, x);
    }
  }
}

// Two significant digits: "950K", "13M", "1.2B".
std::string rounded_count(double n) {
  constexpr std::pair<double, char> kUnits[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {0, 'K'}};
  for (const auto& [unit, letter] : kUnits) {
    const double x = n / (unit == 0 ? 1e3 : unit);
    if (unit == 0 || x >= 0.9995)
      return x < 9.95 ? fmt::format("{:.1f}{}", x, letter) : fmt::format("{:.0f}{}", x, letter);
  }
  return {};
}

}  // namespace

std::string folder_name(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "demo-moe/"
  return path.filename();
}

std::string model_name(const std::string& folder) {
  std::string name = folder_name(folder);
  bool begins = true;
  for (char& c : name) {
    if (c == '-' || c == '_') c = ' ';
    if (begins) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    begins = c == ' ';
  }
  return name;
}

std::string size_label(const Plan& plan, const HfConfig& c) {
  double shared = 0, experts = 0;
  for (const OutTensor& t : plan.tensors) {
    const std::optional<TensorId> id = find_tensor_spec(t.name);
    if (!id) continue;  // factors of matrices
    (id->spec->kind == TensorKind::kExperts ? experts : shared) += static_cast<double>(t.elems());
  }
  if (!c.moe()) return rounded_count(shared);
  return fmt::format("{}x{}", c.experts, rounded_count(shared + experts / static_cast<double>(c.experts)));
}

void write_metadata(const HfConfig& config, const HfTokenizer& tokenizer, const json& generation, const Plan& plan,
                    const std::string& name, gguf::Writer& w) {
  w.add_string("general.architecture", config.row->name);
  w.add_string("general.type", "model");
  w.add_string("general.name", name);
  w.add_string("general.size_label", size_label(plan, config));
  w.add("general.file_type", gguf::file_type_code(plan.mostly));
  w.add("general.quantization_version", uint32_t{2});
  write_sampling(generation, w);
  if (!config.activation_scheme.empty()) w.add_string("quire.activation_scheme", config.activation_scheme);
  write_hyperparameters(config, w);
  write_tokenizer(tokenizer, w);
}

}  // namespace quire::convert
