#include "cli/synth_shapes.h"

#include <fmt/format.h>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer_config.h"

namespace quire::cli {
namespace {

constexpr int64_t kConvKernel = 4;
constexpr int64_t kContext = 262144;

constexpr SynthShape kShapes[] = {
    {.name = "0.6b",
     .summary = "qwen3, dense",
     .architecture = "qwen3",
     .layers = 28,
     .d_model = 1024,
     .heads = 16,
     .kv_heads = 8,
     .head_dim = 128,
     .n_rot = 128,
     .d_ff = 3072,
     .vocab = 151936,
     .tied = true},
    {.name = "4b-hybrid",
     .summary = "qwen35, dense",
     .architecture = "qwen35",
     .layers = 32,
     .d_model = 2560,
     .heads = 16,
     .kv_heads = 4,
     .head_dim = 256,
     .n_rot = 64,
     .d_ff = 9216,
     .vocab = 248320,
     .tied = true,
     .key_heads = 16,
     .value_heads = 32,
     .state = 128},
    {.name = "27b-hybrid",
     .summary = "qwen35, dense",
     .architecture = "qwen35",
     .layers = 64,
     .d_model = 5120,
     .heads = 24,
     .kv_heads = 4,
     .head_dim = 256,
     .n_rot = 64,
     .d_ff = 17408,
     .vocab = 248320,
     .tied = false,
     .key_heads = 16,
     .value_heads = 48,
     .state = 128},
    {.name = "35b-a3b",
     .summary = "qwen35moe, 256 experts, 8 used",
     .architecture = "qwen35moe",
     .layers = 40,
     .d_model = 2048,
     .heads = 16,
     .kv_heads = 2,
     .head_dim = 256,
     .n_rot = 64,
     .vocab = 248320,
     .tied = false,
     .key_heads = 16,
     .value_heads = 32,
     .state = 128,
     .experts = 256,
     .top_k = 8,
     .d_ff_expert = 512,
     .d_ff_shared = 512},
};

// Collects the tensors of one model in file order.
class Builder {
 public:
  explicit Builder(const SynthShape& s) : s_(s) {}

  std::vector<SynthTensor> build() {
    matrix("token_embd", s_.d_model, s_.vocab);
    for (int64_t i = 0; i < s_.layers; ++i) {
      prefix_ = fmt::format("blk.{}.", i);
      ones("attn_norm.weight", s_.d_model);
      s_.full_attention(i) ? attention() : delta_net();
      ones(s_.hybrid() ? "post_attention_norm.weight" : "ffn_norm.weight", s_.d_model);
      s_.experts > 0 ? experts() : dense();
    }
    prefix_.clear();
    ones("output_norm.weight", s_.d_model);
    if (!s_.tied) matrix("output", s_.d_model, s_.vocab);
    return std::move(tensors_);
  }

 private:
  void add(std::string_view name, std::vector<int64_t> dims, SynthValues values) {
    tensors_.push_back({prefix_ + std::string(name), std::move(dims), values});
  }
  void ones(std::string_view name, int64_t n) { add(name, {n}, SynthValues::kOnes); }
  void matrix(std::string_view stem, int64_t cols, int64_t rows, int64_t n = 1) {
    std::vector<int64_t> dims = {cols, rows};
    if (n > 1) dims.push_back(n);
    add(fmt::format("{}.weight", stem), std::move(dims), SynthValues::kMatrix);
  }

  void attention() {
    const int64_t q = s_.heads * s_.head_dim, kv = s_.kv_heads * s_.head_dim;
    matrix("attn_q", s_.d_model, s_.hybrid() ? 2 * q : q);  // hybrids: query and gate
    matrix("attn_k", s_.d_model, kv);
    matrix("attn_v", s_.d_model, kv);
    ones("attn_q_norm.weight", s_.head_dim);
    ones("attn_k_norm.weight", s_.head_dim);
    matrix("attn_output", q, s_.d_model);
  }
  void delta_net() {
    const int64_t keys = s_.key_heads * s_.state, inner = s_.value_heads * s_.state;
    matrix("attn_qkv", s_.d_model, 2 * keys + inner);
    matrix("attn_gate", s_.d_model, inner);
    matrix("ssm_alpha", s_.d_model, s_.value_heads);
    matrix("ssm_beta", s_.d_model, s_.value_heads);
    matrix("ssm_conv1d", kConvKernel, 2 * keys + inner);
    add("ssm_a", {s_.value_heads}, SynthValues::kDecay);
    add("ssm_dt.bias", {s_.value_heads}, SynthValues::kTimeStep);
    ones("ssm_norm.weight", s_.state);
    matrix("ssm_out", inner, s_.d_model);
  }
  void dense() {
    matrix("ffn_gate", s_.d_model, s_.d_ff);
    matrix("ffn_up", s_.d_model, s_.d_ff);
    matrix("ffn_down", s_.d_ff, s_.d_model);
  }
  void experts() {
    matrix("ffn_gate_inp", s_.d_model, s_.experts);
    matrix("ffn_gate_exps", s_.d_model, s_.d_ff_expert, s_.experts);
    matrix("ffn_up_exps", s_.d_model, s_.d_ff_expert, s_.experts);
    matrix("ffn_down_exps", s_.d_ff_expert, s_.d_model, s_.experts);
    add("ffn_gate_inp_shexp.weight", {s_.d_model}, SynthValues::kMatrix);
    matrix("ffn_gate_shexp", s_.d_model, s_.d_ff_shared);
    matrix("ffn_up_shexp", s_.d_model, s_.d_ff_shared);
    matrix("ffn_down_shexp", s_.d_ff_shared, s_.d_model);
  }

  const SynthShape& s_;
  std::string prefix_;
  std::vector<SynthTensor> tensors_;
};

void add_tokenizer(const SynthShape& s, gguf::Writer& w) {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  const auto add = [&](std::string text, TokenType type) {
    texts.push_back(std::move(text));
    types.push_back(static_cast<int32_t>(type));
  };
  for (int b = 0; b < 256; ++b)
    add(std::string(ByteAlphabet::get().letter(static_cast<uint8_t>(b))), TokenType::kNormal);
  const auto end_of_text = static_cast<uint32_t>(texts.size());
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"})
    add(special, TokenType::kControl);
  while (static_cast<int64_t>(texts.size()) < s.vocab)
    add(fmt::format("\u0120t{}", texts.size()),
        TokenType::kNormal);  // a space, and what is no other token's text

  w.add_string("tokenizer.ggml.model", "gpt2");
  w.add_string("tokenizer.ggml.pre", s.hybrid() ? "qwen35" : "qwen2");
  w.add_strings("tokenizer.ggml.tokens", std::vector<std::string_view>(texts.begin(), texts.end()));
  w.add_array<int32_t>("tokenizer.ggml.token_type", types);
  w.add_strings("tokenizer.ggml.merges", {});
  w.add("tokenizer.ggml.eos_token_id", end_of_text + 2);
  w.add("tokenizer.ggml.padding_token_id", end_of_text);
  w.add("tokenizer.ggml.add_bos_token", false);
}

}  // namespace

std::span<const SynthShape> synth_shapes() {
  return kShapes;
}

std::vector<SynthTensor> synth_tensors(const SynthShape& s) {
  return Builder(s).build();
}

void add_synth_metadata(const SynthShape& s, gguf::Writer& w) {
  const auto key = [&](std::string_view k) { return fmt::format("{}.{}", s.architecture, k); };
  const auto u32 = [&](std::string_view k, int64_t v) { w.add(key(k), static_cast<uint32_t>(v)); };
  w.add_string("general.architecture", s.architecture);
  w.add_string("general.type", "model");
  w.add_string("general.name", fmt::format("synthetic {}, {} layers: random weights", s.name, s.layers));
  u32("block_count", s.layers);
  u32("context_length", kContext);
  u32("embedding_length", s.d_model);
  u32("attention.head_count", s.heads);
  u32("attention.head_count_kv", s.kv_heads);
  u32("attention.key_length", s.head_dim);
  u32("attention.value_length", s.head_dim);
  w.add(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  w.add(key("rope.freq_base"), s.hybrid() ? 1e7f : 1e6f);
  u32("rope.dimension_count", s.n_rot);
  if (s.d_ff > 0) u32("feed_forward_length", s.d_ff);
  if (s.experts > 0) {
    u32("expert_count", s.experts);
    u32("expert_used_count", s.top_k);
    u32("expert_feed_forward_length", s.d_ff_expert);
    u32("expert_shared_feed_forward_length", s.d_ff_shared);
  }
  if (s.hybrid()) {
    const int32_t sections[] = {11, 11, 10, 0};
    w.add_array<int32_t>(key("rope.dimension_sections"), sections);
    u32("ssm.conv_kernel", kConvKernel);
    u32("ssm.state_size", s.state);
    u32("ssm.group_count", s.key_heads);
    u32("ssm.time_step_rank", s.value_heads);
    u32("ssm.inner_size", s.value_heads * s.state);
    u32("full_attention_interval", 4);
  }
  add_tokenizer(s, w);
}

}  // namespace quire::cli
