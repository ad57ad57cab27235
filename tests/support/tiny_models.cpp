// The generator of the models' weights. It stands in tools/make_tiny_goldens.py as well; a difference between the two
// shows in the weights' hash (tests/tiny).
#include "support/tiny_models.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

namespace quire::test {
namespace {

constexpr uint64_t kFnvBasis = 0xcbf29ce484222325u;

uint64_t fnv1a64_bytes(std::span<const uint8_t> bytes, uint64_t h) {
  for (const uint8_t b : bytes) h = (h ^ b) * 0x100000001b3u;
  return h;
}

uint64_t fnv1a64_text(std::string_view text, uint64_t h) {
  return fnv1a64_bytes({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, h);
}

// The output function of splitmix64.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// How a tensor's values are spread: centre + spread * u, or, with `gain`, a standard deviation of gain /
// sqrt(inputs).
struct Kind {
  std::string_view suffix;
  double centre, spread, gain;
};
constexpr Kind kKinds[] = {
    {"linear_attn.norm.weight", 1, 0.25, 0},
    {"layernorm_1.weight", 1, 0.25, 0},
    {"layernorm_2.weight", 1, 0.25, 0},
    {"layer_scalar", 0.8, 0.25, 0},
    {"router.scale", 8, 2, 0},
    {"router.per_expert_scale", 1, 0.5, 0},
    {"router.proj.weight", 0, 0, 3},
    {"norm.weight", 1, 0.25, 0},  // centre 0 where the model computes (1 + w)
    {"A_log", -1, 2, 0},
    {"dt_bias", -1, 1.5, 0},
    {"v_proj.bias", 0, 0.1, 0},
    {"o_proj.bias", 0, 0.1, 0},
    {"proj.bias", 0, 1, 0},
    {"mlp.gate.weight", 0, 0, 3},
    {"mlp.router.weight", 0, 0, 3},
    {"mlp.router.bias", 0, 0.5, 0},
    {"gate_up_proj_bias", 0, 9, 0},  // beyond the limits of the activation
    {"down_proj_bias", 0, 0.25, 0},
    {"self_attn.sinks", 0, 2, 0},
    {"q_proj.weight", 0, 0, 1.25},
    {"k_proj.weight", 0, 0, 1.25},
    {"o_proj.weight", 0, 0, 2},
    {"linear_attn.out_proj.weight", 0, 0, 1.5},
    {"experts.down_proj", 0, 0, 2},
    {"down_proj.weight", 0, 0, 2.5},
    {"embed_tokens_per_layer.weight", 0, 0, 3},
    {"embed_tokens.weight", 0, 0, 4},  // 2 when tied: then it is the head as well and sets how peaked the output is
    {"lm_head.weight", 0, 0, 2.5},
    {"", 0, 0, 1},
};

HfTensor make_tensor(const TinyModel& m, std::string name, std::vector<int64_t> shape) {
  Kind kind =
      *std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return name.ends_with(k.suffix); });
  if (kind.suffix == "norm.weight" && m.centred_norms()) kind.centre = 0;
  // Nothing else scales the scores; errors of shared keys add up.
  if (m.gemma4() && name.ends_with("k_norm.weight")) kind.centre = m.shared_kv > 0 ? 0.25 : 0.5;
  if (kind.suffix == "embed_tokens.weight" && m.tied) kind.gain = 2;
  if (kind.gain > 0) kind.spread = kind.gain * std::sqrt(3.0 / static_cast<double>(shape.back()));

  int64_t count = 1;
  for (const int64_t n : shape) count *= n;
  std::vector<bf16> values = golden_values(m.seed, name, count, kind.centre, kind.spread);
  return {std::move(name), std::move(shape), std::move(values)};
}

using Tensors = std::vector<HfTensor>;

void add_attention(const TinyModel& m, int64_t number, const std::string& layer, Tensors& out) {
  const std::string p = layer + "self_attn.";
  const int64_t head_dim = m.head_dim_of(number), q = m.heads * head_dim, kv = m.kv_heads_of(number) * head_dim;
  out.push_back(make_tensor(m, p + "o_proj.weight", {m.hidden, q}));
  if (m.architecture == "phi3") {
    out.push_back(make_tensor(m, p + "qkv_proj.weight", {q + 2 * kv, m.hidden}));
    return;
  }
  out.push_back(make_tensor(m, p + "q_proj.weight", {m.hybrid() ? 2 * q : q, m.hidden}));  // hybrids: with the gate
  if (m.own_kv(number)) out.push_back(make_tensor(m, p + "k_proj.weight", {kv, m.hidden}));
  if (m.own_kv(number) && !m.keys_as_values(number)) out.push_back(make_tensor(m, p + "v_proj.weight", {kv, m.hidden}));
  if (m.qkv_bias()) {
    out.push_back(make_tensor(m, p + "q_proj.bias", {q}));
    out.push_back(make_tensor(m, p + "k_proj.bias", {kv}));
    out.push_back(make_tensor(m, p + "v_proj.bias", {kv}));
  }
  if (m.gpt_oss()) {
    out.push_back(make_tensor(m, p + "o_proj.bias", {m.hidden}));
    out.push_back(make_tensor(m, p + "sinks", {m.heads}));
  }
  if (m.qk_norm()) {
    out.push_back(make_tensor(m, p + "q_norm.weight", {head_dim}));
    if (m.own_kv(number)) out.push_back(make_tensor(m, p + "k_norm.weight", {head_dim}));
  }
}

void add_delta_net(const TinyModel& m, const std::string& layer, Tensors& out) {
  const std::string p = layer + "linear_attn.";
  const int64_t values = m.v_heads * m.state, channels = 2 * m.k_heads * m.state + values;
  if (m.packed_delta()) {
    out.push_back(make_tensor(m, p + "in_proj_qkvz.weight", {channels + values, m.hidden}));
    out.push_back(make_tensor(m, p + "in_proj_ba.weight", {2 * m.v_heads, m.hidden}));
  } else {
    out.push_back(make_tensor(m, p + "in_proj_qkv.weight", {channels, m.hidden}));
    out.push_back(make_tensor(m, p + "in_proj_z.weight", {values, m.hidden}));
    out.push_back(make_tensor(m, p + "in_proj_a.weight", {m.v_heads, m.hidden}));
    out.push_back(make_tensor(m, p + "in_proj_b.weight", {m.v_heads, m.hidden}));
  }
  out.push_back(make_tensor(m, p + "conv1d.weight", {channels, 1, 4}));
  out.push_back(make_tensor(m, p + "A_log", {m.v_heads}));
  out.push_back(make_tensor(m, p + "dt_bias", {m.v_heads}));
  out.push_back(make_tensor(m, p + "norm.weight", {m.state}));
  out.push_back(make_tensor(m, p + "out_proj.weight", {m.hidden, values}));
}

void add_dense_ffn(const TinyModel& m, const std::string& p, int64_t width, Tensors& out) {
  if (m.fused_gate_up()) {
    out.push_back(make_tensor(m, p + "gate_up_proj.weight", {2 * width, m.hidden}));
  } else {
    out.push_back(make_tensor(m, p + "gate_proj.weight", {width, m.hidden}));
    out.push_back(make_tensor(m, p + "up_proj.weight", {width, m.hidden}));
  }
  out.push_back(make_tensor(m, p + "down_proj.weight", {m.hidden, width}));
}

// A dense feed-forward and experts side by side.
void add_parallel(const TinyModel& m, const std::string& layer, Tensors& out) {
  add_dense_ffn(m, layer + "mlp.", m.ffn, out);
  out.push_back(make_tensor(m, layer + "router.proj.weight", {m.experts, m.hidden}));
  out.push_back(make_tensor(m, layer + "router.scale", {m.hidden}));
  out.push_back(make_tensor(m, layer + "router.per_expert_scale", {m.experts}));
  out.push_back(make_tensor(m, layer + "experts.gate_up_proj", {m.experts, 2 * m.expert_ffn, m.hidden}));
  out.push_back(make_tensor(m, layer + "experts.down_proj", {m.experts, m.hidden, m.expert_ffn}));
  for (const char* norm :
       {"post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"})
    out.push_back(make_tensor(m, fmt::format("{}{}.weight", layer, norm), {m.hidden}));
}

void add_ffn(const TinyModel& m, int64_t number, const std::string& layer, Tensors& out) {
  const std::string p = layer + "mlp.";
  if (m.gemma4() && m.experts > 0) return add_parallel(m, layer, out);
  if (m.experts == 0 || number < m.dense) return add_dense_ffn(m, p, m.ffn_of(number), out);
  const int64_t width = m.expert_width();
  if (m.gpt_oss()) {
    out.push_back(make_tensor(m, p + "router.weight", {m.experts, m.hidden}));
    out.push_back(make_tensor(m, p + "router.bias", {m.experts}));
    out.push_back(make_tensor(m, p + "experts.gate_up_proj", {m.experts, m.hidden, 2 * width}));
    out.push_back(make_tensor(m, p + "experts.gate_up_proj_bias", {m.experts, 2 * width}));
    out.push_back(make_tensor(m, p + "experts.down_proj", {m.experts, width, m.hidden}));
    out.push_back(make_tensor(m, p + "experts.down_proj_bias", {m.experts, m.hidden}));
    return;
  }
  out.push_back(make_tensor(m, p + "gate.weight", {m.experts, m.hidden}));
  out.push_back(make_tensor(m, p + "experts.gate_up_proj", {m.experts, 2 * width, m.hidden}));
  out.push_back(make_tensor(m, p + "experts.down_proj", {m.experts, m.hidden, width}));
  if (m.groups > 0) {
    out.push_back(make_tensor(m, p + "gate.e_score_correction_bias", {m.experts}));
    add_dense_ffn(m, p + "shared_experts.", m.shared_ffn, out);
  } else if (m.shared_ffn > 0) {
    add_dense_ffn(m, p + "shared_expert.", m.shared_ffn, out);
    out.push_back(make_tensor(m, p + "shared_expert_gate.weight", {1, m.hidden}));
  }
}

}  // namespace

std::string TinyModel::pre_tokenizer() const {
  if (architecture == "llama") return "llama-bpe";
  return hybrid() ? "qwen35" : "qwen2";
}

std::string TinyModel::golden_path() const {
  return fmt::format("{}/tests/data/golden/{}.json", QUIRE_SOURCE_DIR, name);
}

std::vector<HfTensor> TinyModel::hf_tensors() const {
  Tensors out;
  out.push_back(make_tensor(*this, "model.embed_tokens.weight", {vocab, hidden}));
  out.push_back(make_tensor(*this, "model.norm.weight", {hidden}));
  if (!tied) out.push_back(make_tensor(*this, "lm_head.weight", {vocab, hidden}));
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    out.push_back(make_tensor(*this, layer + "input_layernorm.weight", {hidden}));
    out.push_back(make_tensor(*this, layer + "post_attention_layernorm.weight", {hidden}));
    if (full_attention(i))
      add_attention(*this, i, layer, out);
    else
      add_delta_net(*this, layer, out);
    add_ffn(*this, i, layer, out);
    if (architecture == "glm4")
      for (const char* norm : {"post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"})
        out.push_back(make_tensor(*this, layer + norm, {hidden}));
    if (architecture.starts_with("gemma"))
      for (const char* norm : {"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"})
        out.push_back(make_tensor(*this, layer + norm, {hidden}));
    if (gemma4()) out.push_back(make_tensor(*this, layer + "layer_scalar", {1}));
    if (per_layer == 0) continue;
    out.push_back(make_tensor(*this, layer + "per_layer_input_gate.weight", {per_layer, hidden}));
    out.push_back(make_tensor(*this, layer + "per_layer_projection.weight", {hidden, per_layer}));
    out.push_back(make_tensor(*this, layer + "post_per_layer_input_norm.weight", {hidden}));
  }
  if (per_layer > 0) {
    out.push_back(make_tensor(*this, "model.embed_tokens_per_layer.weight", {vocab, layers * per_layer}));
    out.push_back(make_tensor(*this, "model.per_layer_model_projection.weight", {layers * per_layer, hidden}));
    out.push_back(make_tensor(*this, "model.per_layer_projection_norm.weight", {per_layer}));
  }
  std::sort(out.begin(), out.end(), [](const HfTensor& a, const HfTensor& b) { return a.name < b.name; });
  return out;
}

std::vector<bf16> golden_values(uint32_t seed, std::string_view name, int64_t count, double centre, double spread) {
  const uint64_t start = fnv1a64_text(fmt::format("{}/{}", seed, name), kFnvBasis);
  std::vector<bf16> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = mix(start + (i + 1) * 0x9e3779b97f4a7c15u) >> 40;
    const double u = static_cast<double>(bits) / 8388608.0 - 1.0;
    values[i] = to_bf16(static_cast<float>(centre + spread * u));
  }
  return values;
}

uint64_t fnv1a64(const std::vector<HfTensor>& tensors) {
  uint64_t h = kFnvBasis;
  for (const HfTensor& t : tensors) {
    h = fnv1a64_text(t.name, h);
    for (const bf16 x : t.values) {
      const uint8_t bytes[] = {static_cast<uint8_t>(x.bits & 0xffu), static_cast<uint8_t>(x.bits >> 8)};
      h = fnv1a64_bytes(bytes, h);
    }
  }
  return h;
}

TinyModelFile::TinyModelFile(const TinyModel& model) {
  static int serial = 0;  // tests make these from one thread
  const auto file = fmt::format("quire-{}-{}-{}.gguf", ::getpid(), ++serial, model.name);
  path_ = (std::filesystem::temp_directory_path() / file).string();
  const Status written = model.write_gguf(path_);
  QUIRE_CHECK(written.ok(), "{}: {}", path_, written.error().message);
}

TinyModelFile::~TinyModelFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace quire::test
