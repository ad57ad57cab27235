#include "lab/synth_shapes.h"

#include <fmt/format.h>

#include <array>

#include "arch/architecture.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer_config.h"

namespace quire::cli {
namespace {

using enum TensorRole;

constexpr int64_t kConvKernel = 4;

constexpr int64_t kDeepstack[] = {8, 16, 24};

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
     .tied = true,
     .rope_theta = 1e6f},
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
     .state = 128,
     .rope_theta = 1e7f},
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
     .state = 128,
     .rope_theta = 1e7f},
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
     .d_ff_shared = 512,
     .rope_theta = 1e7f},
    {.name = "122b-a10b",
     .summary = "qwen35moe, 256 experts, 8 used",
     .architecture = "qwen35moe",
     .layers = 48,
     .d_model = 3072,
     .heads = 32,
     .kv_heads = 2,
     .head_dim = 256,
     .n_rot = 64,
     .vocab = 248320,
     .tied = false,
     .key_heads = 16,
     .value_heads = 64,
     .state = 128,
     .experts = 256,
     .top_k = 8,
     .d_ff_expert = 1024,
     .d_ff_shared = 1024,
     .rope_theta = 1e7f},
    {.name = "397b-a17b",
     .summary = "qwen35moe, 512 experts, 10 used",
     .architecture = "qwen35moe",
     .layers = 60,
     .d_model = 4096,
     .heads = 32,
     .kv_heads = 2,
     .head_dim = 256,
     .n_rot = 64,
     .vocab = 248320,
     .tied = false,
     .key_heads = 16,
     .value_heads = 64,
     .state = 128,
     .experts = 512,
     .top_k = 10,
     .d_ff_expert = 1024,
     .d_ff_shared = 1024,
     .rope_theta = 1e7f},
    {.name = "8b-vl",
     .summary = "qwen3vl, dense",
     .architecture = "qwen3vl",
     .layers = 36,
     .d_model = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .n_rot = 128,
     .d_ff = 12288,
     .vocab = 151936,
     .rope_theta = 5e6f,
     .deepstack = kDeepstack},
    {.name = "30b-a3b-vl",
     .summary = "qwen3vlmoe, 128 experts, 8 used",
     .architecture = "qwen3vlmoe",
     .layers = 48,
     .d_model = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .n_rot = 128,
     .vocab = 151936,
     .experts = 128,
     .top_k = 8,
     .d_ff_expert = 768,
     .rope_theta = 5e6f,
     .deepstack = kDeepstack},
    {.name = "gemma3-4b",
     .summary = "gemma3, dense",
     .architecture = "gemma3",
     .layers = 34,
     .d_model = 2560,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .n_rot = 256,
     .d_ff = 10240,
     .vocab = 262208,
     .tied = true,
     .context = 131072,
     .window = 1024,
     .rope_theta = 1e6f,
     .linear_factor = 8},
    {.name = "gemma4-e4b",
     .summary = "gemma4, dense, embeddings of each layer",
     .architecture = "gemma4",
     .layers = 42,
     .d_model = 2560,
     .heads = 8,
     .kv_heads = 2,
     .head_dim = 512,
     .n_rot = 512,
     .d_ff = 10240,
     .vocab = 262144,
     .tied = true,
     .context = 131072,
     .window = 512,
     .rope_theta = 1e6f,
     .window_head_dim = 256,
     .per_layer = 256,
     .own_kv_layers = 24,
     .soft_cap = 30},
    {.name = "gpt-oss-20b",
     .summary = "gpt-oss, 32 experts, 4 used",
     .architecture = "gpt-oss",
     .layers = 24,
     .d_model = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .n_rot = 64,
     .vocab = 201088,
     .tied = false,
     .experts = 32,
     .top_k = 4,
     .d_ff_expert = 2880,
     .context = 131072,
     .window = 128,
     .rope_theta = 1.5e5f,
     .yarn_factor = 32,
     .yarn_context = 4096},
    {.name = "gpt-oss-120b",
     .summary = "gpt-oss, 128 experts, 4 used",
     .architecture = "gpt-oss",
     .layers = 36,
     .d_model = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .n_rot = 64,
     .vocab = 201088,
     .tied = false,
     .experts = 128,
     .top_k = 4,
     .d_ff_expert = 2880,
     .context = 131072,
     .window = 128,
     .rope_theta = 1.5e5f,
     .yarn_factor = 32,
     .yarn_context = 4096},
};

ModelSizes sizes_of(const SynthShape& s, const Architecture& row) {
  return {.vocab = s.vocab,
          .d_model = s.d_model,
          .layers = s.layers,
          .d_per_layer = s.per_layer,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .n_rot = s.n_rot,
          .gated_query = row.gated_query,
          .conv_kernel = kConvKernel,
          .key_heads = s.key_heads,
          .value_heads = s.value_heads,
          .key_dim = s.state,
          .value_dim = s.state,
          .d_ff = s.d_ff,
          .experts = s.experts,
          .d_ff_expert = s.d_ff_expert,
          .d_ff_shared = s.d_ff_shared};
}

// Collects the tensors of one model in file order.
class Builder {
 public:
  Builder(const SynthShape& s, const Architecture& row) : s_(s), row_(row), sizes_(sizes_of(s, row)) {}

  std::vector<SynthTensor> build() {
    add(kTokenEmbedding);
    if (s_.per_layer > 0) add(kPerLayerEmbedding), add(kPerLayerProjection), ones(kPerLayerNorm);
    if (s_.gemma4()) ones(kRopeFreqs);
    for (block_ = 0; block_ < s_.layers; ++block_) layer();
    if (s_.mtp) {
      add(kMtpProjection);
      for (const TensorRole role : {kMtpEmbeddingNorm, kMtpHiddenNorm, kMtpHeadNorm}) ones(role);
      layer();
    }
    ones(kOutputNorm);
    if (!s_.tied) add(kOutput);
    return std::move(tensors_);
  }

 private:
  void add(TensorRole role, SynthValues values = SynthValues::kMatrix) {
    const TensorSpec& spec = tensor_spec(role);
    std::vector<int64_t> dims = {size_of(spec.cols, sizes_)};
    if (spec.rows != Extent::kOne) dims.push_back(size_of(spec.rows, sizes_));
    if (spec.kind == TensorKind::kExperts) dims.push_back(s_.experts);
    tensors_.push_back({tensor_name(role, block_), std::move(dims), values});
  }
  void ones(TensorRole role) { add(role, SynthValues::kOnes); }
  void biases(std::initializer_list<TensorRole> roles) {
    for (const TensorRole role : roles) add(role, SynthValues::kBias);
  }

  void layer() {
    ones(kAttnNorm);
    s_.full_attention(block_) ? attention() : delta_net();
    if (row_.norms_after) ones(kPostAttentionNorm);
    ones(row_.ffn_norm);
    s_.experts > 0 ? experts() : dense();
    if (row_.norms_after) ones(kPostFfnNorm);
    if (s_.per_layer > 0) add(kPerLayerGate), add(kPerLayerOut), ones(kPostPerLayerNorm);
    if (row_.layer_scales) ones(kLayerScale);
  }
  void attention() {
    if (s_.gemma4()) sizes_.head_dim = s_.windowed(block_) ? s_.window_head_dim : s_.head_dim;
    const bool own = s_.own_kv(block_);
    add(kAttnQ);
    if (own) add(kAttnK), add(kAttnV);
    if (row_.qk_norm == Presence::kAlways) {
      ones(kAttnQNorm);
      if (own) ones(kAttnKNorm);
    }
    add(kAttnOutput);
    if (row_.sinks) biases({kAttnSinks, kAttnQBias, kAttnKBias, kAttnVBias, kAttnOutputBias});
  }
  void delta_net() {
    for (const TensorRole role : {kDeltaQkv, kDeltaZ, kDeltaAlpha, kDeltaBeta, kDeltaConv}) add(role);
    add(kDeltaA, SynthValues::kDecay);
    add(kDeltaDtBias, SynthValues::kTimeStep);
    ones(kDeltaNorm);
    add(kDeltaOut);
  }
  void dense() {
    for (const TensorRole role : {kFfnGate, kFfnUp, kFfnDown}) add(role);
  }
  void experts() {
    for (const TensorRole role : {kRouter, kExpertsGate, kExpertsUp, kExpertsDown}) add(role);
    if (row_.oai_experts) biases({kRouterBias, kExpertsGateBias, kExpertsUpBias, kExpertsDownBias});
    if (row_.shared_expert)
      for (const TensorRole role : {kSharedRouter, kSharedGate, kSharedUp, kSharedDown}) add(role);
  }

  const SynthShape& s_;
  const Architecture& row_;
  ModelSizes sizes_;
  int64_t block_ = 0;
  std::vector<SynthTensor> tensors_;
};

// What stands for pictures in a prompt, and a template that puts it there.
struct ImageTokens {
  std::array<const char*, 3> controls;
  std::string_view chat_template;
};

constexpr std::string_view kImageTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr std::string_view kGemmaTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<start_of_image>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

constexpr std::string_view kGemma4Template =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|image|>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

ImageTokens image_tokens(const SynthShape& s) {
  if (s.gemma4()) return {{"<|image>", "<pad>", "<image|>"}, kGemma4Template};
  if (s.gemma()) return {{"<start_of_image>", "<image_soft_token>", "<end_of_image>"}, kGemmaTemplate};
  return {{"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"}, kImageTemplate};
}

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
  for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) add(special, TokenType::kControl);
  if (s.images) {
    const ImageTokens images = image_tokens(s);
    for (const char* special : images.controls) add(special, TokenType::kControl);
    w.add_string("tokenizer.chat_template", images.chat_template);
  }
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
  const Architecture* const row = find_architecture(s.architecture);
  QUIRE_CHECK(row != nullptr, "no architecture {}", s.architecture);
  return Builder(s, *row).build();
}

void add_synth_metadata(const SynthShape& s, gguf::Writer& w) {
  const auto key = [&](std::string_view k) { return fmt::format("{}.{}", s.architecture, k); };
  const auto u32 = [&](std::string_view k, int64_t v) { w.add(key(k), static_cast<uint32_t>(v)); };
  w.add_string("general.architecture", s.architecture);
  w.add_string("general.type", "model");
  w.add_string("general.name", fmt::format("synthetic {}, {} layers: random weights", s.name, s.layers));
  u32("block_count", s.layers + s.mtp);
  if (s.mtp) u32("nextn_predict_layers", 1);
  u32("context_length", s.context);
  u32("embedding_length", s.d_model);
  u32("attention.head_count", s.heads);
  u32("attention.head_count_kv", s.kv_heads);
  u32("attention.key_length", s.head_dim);
  u32("attention.value_length", s.head_dim);
  w.add(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  w.add(key("rope.freq_base"), s.rope_theta);
  if (s.yarn_context > 0) {
    w.add_string(key("rope.scaling.type"), "yarn");
    w.add(key("rope.scaling.factor"), s.yarn_factor);
    u32("rope.scaling.original_context_length", s.yarn_context);
  }
  if (s.linear_factor > 0) {
    w.add_string(key("rope.scaling.type"), "linear");
    w.add(key("rope.scaling.factor"), s.linear_factor);
  }
  if (s.window > 0) u32("attention.sliding_window", s.window);
  u32("rope.dimension_count", s.n_rot);
  if (s.d_ff > 0) u32("feed_forward_length", s.d_ff);
  if (s.experts > 0) {
    u32("expert_count", s.experts);
    u32("expert_used_count", s.top_k);
    u32("expert_feed_forward_length", s.d_ff_expert);
    if (s.d_ff_shared > 0) u32("expert_shared_feed_forward_length", s.d_ff_shared);
  }
  if (s.gemma4()) {
    u32("attention.key_length_swa", s.window_head_dim);
    u32("attention.value_length_swa", s.window_head_dim);
    u32("attention.shared_kv_layers", std::max<int64_t>(0, s.layers - s.own_kv_layers));
    u32("embedding_length_per_layer_input", s.per_layer);
    u32("rope.dimension_count_swa", s.window_head_dim);
    w.add(key("rope.freq_base_swa"), 1e4f);
    w.add(key("final_logit_softcapping"), s.soft_cap);
    std::vector<bool> windowed;
    for (int64_t i = 0; i < s.layers; ++i) windowed.push_back(s.windowed(i));
    w.add_bools(key("attention.sliding_window_pattern"), windowed);
  }
  if (s.sees() && !s.gemma() && !s.gemma4()) {
    const int32_t partial[] = {11, 11, 10, 0}, whole[] = {24, 20, 20, 0};
    w.add_array<int32_t>(key("rope.dimension_sections"), s.hybrid() ? partial : whole);
  }
  if (s.hybrid()) {
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
