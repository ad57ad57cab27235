#include "arch/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace quire {
namespace {

using enum TensorRole;

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .classes = {"LlamaForCausalLM", "MixtralForCausalLM", "MistralForCausalLM"},
     .rope = RopePairs::kNeighbours,
     .experts = Presence::kMaybe,
     .experts_as_wide = true},
    {.name = "qwen2", .classes = {"Qwen2ForCausalLM"}, .qkv_bias = true},
    {.name = "qwen3",
     .classes = {"Qwen3ForCausalLM"},
     .qk_norm = Presence::kAlways,
     .folder_defaults = {.head_dim = 128}},
    {.name = "qwen3moe",
     .classes = {"Qwen3MoeForCausalLM"},
     .qk_norm = Presence::kAlways,
     .experts = Presence::kAlways},
    {.name = "qwen3vl",
     .classes = {"Qwen3VLForConditionalGeneration"},
     .rope_sections = true,
     .qk_norm = Presence::kAlways,
     .folder_defaults = {.head_dim = 128}},
    {.name = "qwen3vlmoe",
     .classes = {"Qwen3VLMoeForConditionalGeneration"},
     .rope_sections = true,
     .qk_norm = Presence::kAlways,
     .experts = Presence::kAlways,
     .transposed_experts = true,
     .folder_defaults = {.head_dim = 128}},
    {.name = "qwen35",
     .classes = {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"},
     .rotary_share = 0.25,
     .rope_sections = true,
     .qk_norm = Presence::kAlways,
     .gated_query = true,
     .delta_net = true,
     .mtp = true,
     .ffn_norm = kPostAttentionNorm,
     .centred_norms = true,
     .folder_defaults = {.head_dim = 256}},
    {.name = "qwen35moe",
     .classes = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"},
     .rotary_share = 0.25,
     .rope_sections = true,
     .qk_norm = Presence::kAlways,
     .gated_query = true,
     .delta_net = true,
     .experts = Presence::kAlways,
     .shared_expert = true,
     .mtp = true,
     .ffn_norm = kPostAttentionNorm,
     .centred_norms = true,
     .folder_defaults = {.head_dim = 256}},
    {.name = "qwen3next",
     .classes = {"Qwen3NextForCausalLM"},
     .rotary_share = 0.25,
     .qk_norm = Presence::kAlways,
     .gated_query = true,
     .delta_net = true,
     .grouped_value_heads = true,
     .experts = Presence::kAlways,
     .shared_expert = true,
     .mtp_left_out = true,
     .ffn_norm = kPostAttentionNorm,
     .centred_norms = true,
     .folder_defaults = {.head_dim = 256}},
    {.name = "phi3",
     .classes = {"Phi3ForCausalLM"},
     .rotary_share = 1,
     .fused_qkv = true,
     .fused_gate_up = true,
     .folder_defaults = {.kv_heads = -1, .original_context = 4096}},
    {.name = "glm4",
     .classes = {"Glm4ForCausalLM"},
     .rope = RopePairs::kNeighbours,
     .rotary_share = 0.5,
     .output_bias = false,
     .fused_gate_up = true,
     .norms_after = true,
     .folder_names = {{{kPostAttentionNorm, "post_self_attn_layernorm.weight"},
                       {kPostFfnNorm, "post_mlp_layernorm.weight"}}},
     .folder_defaults = {.head_dim = 128, .attention_bias = true}},
    {.name = "glm4moe",
     .classes = {"Glm4MoeForCausalLM"},
     .rotary_share = 0.5,
     .qk_norm = Presence::kMaybe,
     .output_bias = false,
     .experts = Presence::kAlways,
     .shared_expert = true,
     .shared_router = false,
     .any_router = true,
     .mtp_left_out = true,
     .ffn_norm = kPostAttentionNorm,
     .folder_names = {{{kSharedGate, "mlp.shared_experts.gate_proj.weight"},
                       {kSharedUp, "mlp.shared_experts.up_proj.weight"},
                       {kSharedDown, "mlp.shared_experts.down_proj.weight"}}}},
    {.name = "gpt-oss",
     .classes = {"GptOssForCausalLM"},
     .window_interval = 2,
     .sinks = true,
     .exact_yarn = true,
     .experts = Presence::kAlways,
     .oai_experts = true,
     .ffn_norm = kPostAttentionNorm,
     .folder_names = {{{kRouter, "mlp.router.weight"}}},
     .folder_defaults = {.vocab = 201088,
                         .context = 131072,
                         .heads = 64,
                         .kv_heads = 8,
                         .head_dim = 64,
                         .rms_eps = 1e-5,
                         .rope_theta = 1.5e5,
                         .window = 128,
                         .attention_bias = true}},
    {.name = "gemma3",
     .classes = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
     .qk_norm = Presence::kAlways,
     .window_interval = 6,
     .local_rope_theta = 1e4,
     .scaled_scores = true,
     .hidden_scaled_layers = 62,
     .gelu = true,
     .norms_after = true,
     .centred_norms = true,
     .scaled_embedding = true,
     .capped_logits = true,
     .folder_names = {{{kFfnNorm, "pre_feedforward_layernorm.weight"}}},
     .folder_defaults = {.vocab = 262208,
                         .context = 131072,
                         .heads = 8,
                         .kv_heads = 4,
                         .head_dim = 256,
                         .rms_eps = 1e-6,
                         .rope_theta = 1e6,
                         .tied = true}},
    {.name = "gemma4",
     .classes = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
     .qk_norm = Presence::kAlways,
     .window_interval = 6,
     .proportional_share = 0.25,
     .local_rope_theta = 1e4,
     .own_window_heads = true,
     .last_attends_to_all = true,
     .pictures_in_windows = true,
     .value_norm = true,
     .keys_as_values = true,
     .shared_kv = true,
     .score_scale = 1,
     .gelu = true,
     .experts = Presence::kMaybe,
     .dense_beside_experts = true,
     .norms_after = true,
     .scaled_embedding = true,
     .layer_scales = true,
     .capped_logits = true,
     .per_layer_embeddings = true,
     .folder_names = {{{kFfnNorm, "pre_feedforward_layernorm.weight"}, {kRouter, "router.proj.weight"}}},
     .folder_defaults = {.vocab = 262144,
                         .context = 131072,
                         .heads = 8,
                         .kv_heads = 4,
                         .head_dim = 256,
                         .rms_eps = 1e-6,
                         .rope_theta = 1e6,
                         .window = 512,
                         .per_layer = 256,
                         .tied = true}},
};

constexpr UnsupportedTensor kUnsupported[] = {
    {"attn_sinks.weight", "attention sinks"},
    {"attn_q_norm.weight", "norms of the queries"},
    {"attn_k_norm.weight", "norms of the keys"},
    {"post_attention_norm.weight", "norms after attention"},
    {"post_ffw_norm.weight", "norms after the feed-forward"},
    {"post_ffw_norm_1.weight", "a dense feed-forward beside the experts"},
    {"pre_ffw_norm_2.weight", "a dense feed-forward beside the experts"},
    {"post_ffw_norm_2.weight", "a dense feed-forward beside the experts"},
    {"inp_gate.weight", "embeddings of each layer"},
    {"layer_output_scale.weight", "scales of a block's output"},
    {"ffn_gate_inp.bias", "biases of the router"},
    {"exp_probs_b.bias", "biases of the router"},
    {"ffn_gate_exps.bias", "biases of experts"},
    {"ffn_up_exps.bias", "biases of experts"},
    {"ffn_down_exps.bias", "biases of experts"},
};

// What image and sound encoders are called in files that hold them beside the text model, and what projects from them.
constexpr std::string_view kOtherSenses[] = {"v.", "a.", "mm."};

// Frequencies of RoPE, which early converters wrote into every block: metadata gives them.
constexpr std::string_view kRotations = "attn_rot_embd.weight";

// Behind "blk.<number>.", or the whole name.
std::string_view behind_block(std::string_view name) {
  return block_of(name) < 0 ? name : name.substr(name.find('.', name.find('.') + 1) + 1);
}

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

const Architecture* find_architecture(std::string_view name) {
  const auto* row = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                 [&](const Architecture& a) { return a.name == name; });
  return row == std::end(kArchitectures) ? nullptr : row;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& a : kArchitectures) names += fmt::format("{}{}", names.empty() ? "" : ", ", a.name);
  return names;
}

const UnsupportedTensor* find_unsupported_tensor(std::string_view name) {
  if (block_of(name) < 0) return nullptr;
  const std::string_view rest = behind_block(name);
  const auto* found = std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                                   [&](const UnsupportedTensor& t) { return t.name == rest; });
  return found == std::end(kUnsupported) ? nullptr : found;
}

bool may_stay_unread(std::string_view name) {
  if (block_of(name) >= 0) return behind_block(name) == kRotations;
  return std::any_of(std::begin(kOtherSenses), std::end(kOtherSenses),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace quire
