// The GGUF file of a small model: what a converter makes of the transformers tensors, and the metadata.
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <span>

#include "gguf/writer.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

constexpr uint32_t kContext = 2048;
constexpr int64_t kConvWidth = 4;

// A tensor as it goes into the file. dims in ne order.
struct FileTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> dims;
  std::vector<float> values;
};

// ---- Orders ----

// out block i = in block order[i], for the blocks of `size` elements that begin at `begin`.
void reorder(std::vector<float>& values, size_t begin, size_t size, const std::vector<int64_t>& order) {
  const std::vector<float> in = values;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto from = in.begin() + static_cast<int64_t>(begin + static_cast<size_t>(order[i]) * size);
    std::copy(from, from + static_cast<int64_t>(size), values.begin() + static_cast<int64_t>(begin + i * size));
  }
}

// llama's rotary pairs are neighbours in GGUF and half a head apart in transformers: row 2j+b comes from row
// b*d/2+j.
std::vector<int64_t> interleaved_rows(int64_t heads, int64_t head_dim) {
  std::vector<int64_t> order;
  for (int64_t row = 0; row < heads * head_dim; ++row) {
    const int64_t head = row / head_dim, r = row % head_dim;
    order.push_back(head * head_dim + (r % 2) * head_dim / 2 + r / 2);
  }
  return order;
}

// transformers keeps the value heads of one key head together; GGUF goes round the key heads: m*nk + j <- j*r
// + m.
std::vector<int64_t> tiled_heads(const TinyModel& m) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < m.v_heads; ++i) order.push_back(i % m.k_heads * (m.v_heads / m.k_heads) + i / m.k_heads);
  return order;
}

void tile_value_heads(const TinyModel& m, std::string_view role, FileTensor& t) {
  const auto order = tiled_heads(m);
  const auto state = static_cast<size_t>(m.state), hidden = static_cast<size_t>(m.hidden);
  const size_t keys = static_cast<size_t>(2 * m.k_heads) * state;  // rows of q and k, which stay
  if (role == "in_proj_qkv.weight") reorder(t.values, keys * hidden, state * hidden, order);
  if (role == "conv1d.weight") reorder(t.values, keys * kConvWidth, state * kConvWidth, order);
  if (role == "in_proj_z.weight") reorder(t.values, 0, state * hidden, order);
  if (role == "in_proj_a.weight" || role == "in_proj_b.weight") reorder(t.values, 0, hidden, order);
  if (role == "A_log" || role == "dt_bias") reorder(t.values, 0, 1, order);
  if (role == "out_proj.weight")  // columns
    for (size_t row = 0; row < hidden; ++row) reorder(t.values, row * order.size() * state, state, order);
}

// ---- Names ----

struct Name {
  std::string_view hf, gguf;
};
constexpr Name kGlobalNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
};
constexpr Name kLayerNames[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},  // see post_attention_norm()
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"post_self_attn_layernorm.weight", "post_attention_norm.weight"},
    {"post_mlp_layernorm.weight", "post_ffw_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mlp.router.weight", "ffn_gate_inp.weight"},
    {"mlp.router.bias", "ffn_gate_inp.bias"},
    {"mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias"},  // and "ffn_up_exps.bias"
    {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"},
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.experts.gate_up_proj", "ffn_gate_exps.weight"},  // its second half: "ffn_up_exps.weight"
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"linear_attn.in_proj_qkvz.weight", "attn_qkv.weight"},  // and "attn_gate.weight"
    {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
};

// Whether what comes before the feed-forward, or behind attention, has that name in the file.
bool post_attention_norm(const TinyModel& m) {
  return m.hybrid() || m.architecture == "glm4moe" || m.architecture.starts_with("gemma") || m.gpt_oss();
}

std::string_view look_up(std::span<const Name> names, std::string_view hf) {
  for (const Name& n : names)
    if (n.hf == hf) return n.gguf;
  QUIRE_CHECK(false, "no GGUF name for {}", hf);
}

// ---- Tensors ----

// Of each key head come q, k, its values and their z. The file has q, k and v of all heads in one tensor, and z.
void unpack_inputs(const TinyModel& m, const FileTensor& in, const std::string& prefix, std::vector<FileTensor>& out) {
  const int64_t values = m.v_heads / m.k_heads * m.state, each = 2 * m.state + 2 * values;
  const auto append = [&](FileTensor& t, int64_t begin, int64_t rows) {
    for (int64_t head = 0; head < m.k_heads; ++head) {
      const auto from = in.values.begin() + (head * each + begin) * m.hidden;
      t.values.insert(t.values.end(), from, from + rows * m.hidden);
    }
    t.dims = {m.hidden, std::ssize(t.values) / m.hidden};
  };
  FileTensor qkv{in.name, in.dtype, {}, {}}, z{prefix + "attn_gate.weight", in.dtype, {}, {}};
  append(qkv, 0, m.state);
  append(qkv, m.state, m.state);
  append(qkv, 2 * m.state, values);
  append(z, 2 * m.state + values, values);
  out.push_back(std::move(qkv));
  out.push_back(std::move(z));
}

// transformers has the transposes of the experts' matrices; of gate_up and its bias, gate and up take turns.
void convert_oai_experts(const TinyModel& m, FileTensor t, const std::string& prefix, std::vector<FileTensor>& out) {
  const bool matrix = t.dims.size() == 3;
  if (matrix) {
    const auto rows = static_cast<size_t>(t.dims[0]), cols = static_cast<size_t>(t.dims[1]);
    const std::vector<float> in = t.values;
    for (size_t e = 0; e < static_cast<size_t>(m.experts); ++e)
      for (size_t r = 0; r < rows; ++r)
        for (size_t c = 0; c < cols; ++c) t.values[(e * rows + r) * cols + c] = in[(e * cols + c) * rows + r];
    std::swap(t.dims[0], t.dims[1]);
  }
  if (!t.name.starts_with(prefix + "ffn_gate_exps.")) return out.push_back(std::move(t));
  const int64_t width = matrix ? t.dims[0] : 1;
  FileTensor gate{t.name, t.dtype, t.dims, {}};
  gate.dims[matrix ? 1 : 0] /= 2;
  FileTensor up = gate;
  up.name = fmt::format("{}ffn_up_exps.{}", prefix, matrix ? "weight" : "bias");
  for (auto it = t.values.begin(); it != t.values.end(); it += 2 * width) {
    gate.values.insert(gate.values.end(), it, it + width);
    up.values.insert(up.values.end(), it + width, it + 2 * width);
  }
  out.push_back(std::move(gate));
  out.push_back(std::move(up));
}

// Appends what becomes of one transformers tensor.
void convert(const TinyModel& m, const HfTensor& in, std::vector<FileTensor>& out) {
  constexpr std::string_view kLayers = "model.layers.";
  std::string_view role = in.name;
  std::string prefix;
  if (role.starts_with(kLayers)) {
    role.remove_prefix(kLayers.size());
    prefix = fmt::format("blk.{}.", role.substr(0, role.find('.')));
    role.remove_prefix(role.find('.') + 1);
  }
  std::string name =
      prefix + std::string(look_up(prefix.empty() ? std::span<const Name>(kGlobalNames) : kLayerNames, role));
  if (post_attention_norm(m) && role == "post_attention_layernorm.weight") name = prefix + "post_attention_norm.weight";

  FileTensor t{name, DType::kBF16, {in.shape.rbegin(), in.shape.rend()}, {}};
  for (const bf16 x : in.values) t.values.push_back(to_float(x));
  if (role == "linear_attn.conv1d.weight") t.dims = {kConvWidth, in.shape[0]};
  if (role == "mlp.shared_expert_gate.weight") t.dims = {m.hidden};
  if (t.dims.size() == 1 || role == "mlp.gate.weight" || role == "mlp.router.weight" || role == "router.proj.weight" ||
      role.ends_with("_bias") || role == "linear_attn.conv1d.weight")
    t.dtype = DType::kF32;

  constexpr std::string_view kDeltaNet = "linear_attn.";
  if (role.starts_with(kDeltaNet) && !m.packed_delta()) tile_value_heads(m, role.substr(kDeltaNet.size()), t);
  if (role == "linear_attn.A_log")
    for (float& x : t.values) x = -std::exp(x);
  if (m.centred_norms() && role.ends_with("norm.weight") && role != "linear_attn.norm.weight")
    for (float& x : t.values) x += 1;  // transformers stores the difference from 1
  if (m.architecture == "llama" && (role == "self_attn.q_proj.weight" || role == "self_attn.k_proj.weight"))
    reorder(t.values, 0, static_cast<size_t>(m.hidden), interleaved_rows(in.shape[0] / m.head_dim, m.head_dim));

  if (m.gpt_oss() && role.starts_with("mlp.experts.")) return convert_oai_experts(m, std::move(t), prefix, out);
  if (role == "linear_attn.in_proj_qkvz.weight") return unpack_inputs(m, t, prefix, out);
  if (role != "mlp.experts.gate_up_proj") {
    out.push_back(std::move(t));
    return;
  }
  // Per expert: the gate's rows, then those of `up`.
  FileTensor gate{t.name, t.dtype, {m.hidden, m.expert_width(), m.experts}, {}}, up = gate;
  up.name = prefix + "ffn_up_exps.weight";
  const int64_t half = m.hidden * m.expert_width();
  for (auto it = t.values.begin(); it != t.values.end(); it += 2 * half) {
    gate.values.insert(gate.values.end(), it, it + half);
    up.values.insert(up.values.end(), it + half, it + 2 * half);
  }
  out.push_back(std::move(gate));
  out.push_back(std::move(up));
}

// Divisors of the rotary frequencies for Llama 3's scaling: factor 8, low 1, high 4, original context 64. So
// short a context that wavelengths of all three kinds (kept, blended, divided) occur.
FileTensor rope_divisors(const TinyModel& m) {
  constexpr double kFactor = 8, kLow = 1, kHigh = 4, kOriginal = 64;
  FileTensor t{"rope_freqs.weight", DType::kF32, {m.head_dim / 2}, {}};
  for (int64_t j = 0; j < m.head_dim / 2; ++j) {
    const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(m.head_dim);
    const double wavelength = 2 * std::numbers::pi * std::pow(m.rope_theta, exponent);
    const double a = (kOriginal / wavelength - kLow) / (kHigh - kLow);
    const double f = a > 1 ? 1 : a < 0 ? kFactor : 1 / ((1 - a) / kFactor + a);
    t.values.push_back(static_cast<float>(f));
  }
  return t;
}

// 1 for pairs of elements that rotate in layers that attend to all, and a number that stops the others.
FileTensor proportional_divisors(const TinyModel& m) {
  FileTensor t{"rope_freqs.weight", DType::kF32, {m.global_head_dim / 2}, {}};
  for (int64_t j = 0; j < m.global_head_dim / 2; ++j) t.values.push_back(j < m.rotated_pairs ? 1.0F : 1e30F);
  return t;
}

std::vector<std::byte> encode(const FileTensor& t) {
  if (t.dtype == DType::kF32) {
    std::vector<std::byte> bytes(t.values.size() * sizeof(float));
    std::memcpy(bytes.data(), t.values.data(), bytes.size());
    return bytes;
  }
  std::vector<bf16> rounded;
  for (const float x : t.values) rounded.push_back(to_bf16(x));
  std::vector<std::byte> bytes(rounded.size() * sizeof(bf16));
  std::memcpy(bytes.data(), rounded.data(), bytes.size());
  return bytes;
}

// ---- Metadata ----

// Of layers that attend to a window, and of what the small ones have.
void add_gemma4(const TinyModel& m, gguf::Writer& w) {
  const auto u32 = [&](std::string_view key, int64_t v) {
    w.add(fmt::format("gemma4.{}", key), static_cast<uint32_t>(v));
  };
  u32("attention.key_length_swa", m.head_dim);
  u32("attention.value_length_swa", m.head_dim);
  u32("attention.shared_kv_layers", m.shared_kv);
  u32("embedding_length_per_layer_input", m.per_layer);
  u32("rope.dimension_count_swa", m.head_dim);
  w.add("gemma4.rope.freq_base_swa", m.local_theta);
  w.add("gemma4.final_logit_softcapping", m.soft_cap);
  const auto windowed = std::make_unique<bool[]>(static_cast<size_t>(m.layers));
  std::vector<int32_t> kv_heads, widths;
  for (int64_t i = 0; i < m.layers; ++i) {
    windowed[static_cast<size_t>(i)] = m.windowed(i);
    widths.push_back(static_cast<int32_t>(m.ffn_of(i)));
    kv_heads.push_back(static_cast<int32_t>(m.kv_heads_of(i)));
  }
  w.add_array("gemma4.attention.sliding_window_pattern",
              std::span<const bool>(windowed.get(), static_cast<size_t>(m.layers)));
  if (m.global_kv_heads > 0) w.add_array("gemma4.attention.head_count_kv", std::span<const int32_t>(kv_heads));
  if (m.double_wide) w.add_array("gemma4.feed_forward_length", std::span<const int32_t>(widths));
}

void add_hyperparameters(const TinyModel& m, gguf::Writer& w) {
  const auto u32 = [&](std::string_view key, int64_t v) {
    w.add(fmt::format("{}.{}", m.architecture, key), static_cast<uint32_t>(v));
  };
  w.add_string("general.architecture", m.architecture);
  w.add_string("general.type", "model");
  w.add_string("general.name", m.name);
  w.add("general.file_type", uint32_t{32});  // mostly bf16
  u32("context_length", kContext);
  u32("embedding_length", m.hidden);
  u32("block_count", m.layers);
  if (!m.double_wide) u32("feed_forward_length", m.ffn);
  u32("attention.head_count", m.heads);
  if (m.global_kv_heads == 0) u32("attention.head_count_kv", m.kv_heads);
  u32("attention.key_length", m.head_dim_of(m.layers));
  u32("attention.value_length", m.head_dim_of(m.layers));
  if (m.gemma4()) add_gemma4(m, w);
  w.add(m.architecture + ".attention.layer_norm_rms_epsilon", m.rms_eps);
  w.add(m.architecture + ".rope.freq_base", m.rope_theta);
  if (m.architecture == "llama") u32("vocab_size", m.vocab);
  if (m.architecture == "llama" || m.n_rot > 0 || m.gemma4()) u32("rope.dimension_count", m.rotated());
  if (m.long_rope.original > 0) {
    u32("rope.scaling.original_context_length", m.long_rope.original);
    w.add(m.architecture + ".rope.scaling.attn_factor", m.long_rope.magnitude);
  }
  if (m.window > 0) {
    u32("attention.sliding_window", m.window);
  }
  if (m.yarn.original > 0) {
    w.add_string(m.architecture + ".rope.scaling.type", "yarn");
    w.add(m.architecture + ".rope.scaling.factor", m.yarn.factor);
    u32("rope.scaling.original_context_length", m.yarn.original);
  }
  if (m.scalar > 0) {
    u32("attention.sliding_window_pattern", m.window_interval);
    w.add(m.architecture + ".rope.freq_base_swa", m.local_theta);
    w.add_string(m.architecture + ".rope.scaling.type", "linear");
    w.add(m.architecture + ".rope.scaling.factor", 8.0F);
    w.add(m.architecture + ".attention.scale", static_cast<float>(1 / std::sqrt(static_cast<double>(m.scalar))));
  }
  if (m.experts > 0) {
    u32("expert_count", m.experts);
    u32("expert_used_count", m.experts_used);
  }
  if (m.expert_ffn > 0 || m.gpt_oss()) u32("expert_feed_forward_length", m.expert_width());
  if (m.groups > 0) {
    u32("expert_shared_count", m.shared_ffn / m.expert_ffn);
    u32("leading_dense_block_count", m.dense);
    u32("expert_gating_func", 2);
    u32("expert_group_count", m.groups);
    u32("expert_group_used_count", m.used_groups);
    w.add(m.architecture + ".expert_weights_scale", m.routed_scale);
    w.add(m.architecture + ".expert_weights_norm", true);
  } else if (m.shared_ffn > 0) {
    u32("expert_shared_feed_forward_length", m.shared_ffn);
  }
  if (!m.rope_sections.empty()) w.add_array(m.architecture + ".rope.dimension_sections", std::span(m.rope_sections));
  if (m.hybrid()) {
    u32("ssm.conv_kernel", kConvWidth);
    u32("ssm.state_size", m.state);
    u32("ssm.group_count", m.k_heads);
    u32("ssm.time_step_rank", m.v_heads);
    u32("ssm.inner_size", m.v_heads * m.state);
    u32("full_attention_interval", m.interval);
  }
}

// ---- Tokenizer: 256 byte tokens in GPT-2's order, a few merges, unused ids, special tokens at the end ----

constexpr std::string_view kMerges[] = {"Ġ t", "h e",  "Ġ a", "i n",   "Ġt he", "r e", "o n", "e r", "Ġ s", "a t",
                                        "n d", "o u",  "i s", "Ġa nd", "in g",  "Ġ w", "e n", "Ġ c", "l l", "Ġ f",
                                        "o r", "Ġs t", "å ·", "Ã ©",   "Ġ 1",   "Ġ (", ") ;", "Ċ Ċ"};
constexpr std::string_view kLlamaSpecials[] = {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"};
constexpr std::string_view kQwenSpecials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
constexpr std::string_view kTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::string utf8_of_two_bytes(uint32_t code) {  // U+0080 to U+07FF
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

// The 256 printable stand-ins of bytes, in the order of GPT-2's ids: the printable bytes first.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (uint32_t b = 0x21; b <= 0x7e; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (uint32_t b = 0xa1; b <= 0xff; ++b)
    if (b != 0xad) tokens.push_back(utf8_of_two_bytes(b));
  for (uint32_t i = 0; tokens.size() < 256; ++i) tokens.push_back(utf8_of_two_bytes(0x100 + i));
  return tokens;
}

void add_tokenizer(const TinyModel& m, gguf::Writer& w) {
  constexpr int32_t kNormal = 1, kControl = 3, kUnused = 5;
  std::vector<std::string> tokens = byte_tokens();
  for (const std::string_view merge : kMerges) {
    const size_t space = merge.find(' ');
    tokens.push_back(std::string(merge.substr(0, space)) + std::string(merge.substr(space + 1)));
  }
  std::vector<int32_t> types(tokens.size(), kNormal);
  const auto first_special = static_cast<size_t>(m.vocab) - std::size(kQwenSpecials);
  while (tokens.size() < first_special) {
    tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
    types.push_back(kUnused);
  }
  for (const std::string_view special : m.architecture == "llama" ? kLlamaSpecials : kQwenSpecials) {
    tokens.emplace_back(special);
    types.push_back(kControl);
  }
  QUIRE_CHECK(static_cast<int64_t>(tokens.size()) == m.vocab, "{}: {} tokens", m.name, tokens.size());

  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  const auto special = [&](size_t i) { return static_cast<uint32_t>(first_special + i); };
  w.add_string("tokenizer.ggml.model", "gpt2");
  w.add_string("tokenizer.ggml.pre", m.pre_tokenizer());
  w.add_strings("tokenizer.ggml.tokens", views);
  w.add_array("tokenizer.ggml.token_type", std::span<const int32_t>(types));
  w.add_strings("tokenizer.ggml.merges", kMerges);
  if (m.architecture == "llama") w.add("tokenizer.ggml.bos_token_id", special(0));
  w.add("tokenizer.ggml.eos_token_id", special(m.architecture == "llama" ? 1 : 2));
  w.add("tokenizer.ggml.add_bos_token", m.add_bos());
  if (m.architecture != "llama") {
    w.add("tokenizer.ggml.padding_token_id", special(0));
    w.add_string("tokenizer.chat_template", kTemplate);
  }
}

}  // namespace

Status TinyModel::write_gguf(const std::string& path) const {
  std::vector<FileTensor> tensors;
  for (const HfTensor& t : hf_tensors()) convert(*this, t, tensors);
  if (llama3_rope) tensors.push_back(rope_divisors(*this));
  if (gemma4()) tensors.push_back(proportional_divisors(*this));
  if (long_rope.original > 0) {
    tensors.push_back({"rope_factors_long.weight", DType::kF32, {n_rot / 2}, long_factors()});
    tensors.push_back({"rope_factors_short.weight", DType::kF32, {n_rot / 2}, short_factors()});
  }

  gguf::Writer writer;
  add_hyperparameters(*this, writer);
  add_tokenizer(*this, writer);
  for (const FileTensor& t : tensors) QUIRE_CHECKED(writer.add_tensor(t.name, t.dtype, t.dims));
  QUIRE_CHECKED(writer.open(path));
  for (const FileTensor& t : tensors) QUIRE_CHECKED(writer.write_tensor(encode(t)));
  return writer.finish();
}

}  // namespace quire::test
