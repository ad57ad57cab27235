#include "arch/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace quire {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .classes = {"LlamaForCausalLM", "MixtralForCausalLM"},
     .rope = RopePairs::kNeighbours,
     .experts = Presence::kMaybe,
     .experts_as_wide = true},
    {.name = "qwen2", .classes = {"Qwen2ForCausalLM"}, .qkv_bias = true},
    {.name = "qwen3", .classes = {"Qwen3ForCausalLM"}, .qk_norm = true, .checkpoint_head_dim = 128},
    {.name = "qwen3moe", .classes = {"Qwen3MoeForCausalLM"}, .qk_norm = true, .experts = Presence::kAlways},
    {.name = "qwen35",
     .classes = {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"},
     .qk_norm = true,
     .gated_query = true,
     .delta_net = true,
     .mtp = true,
     .ffn_norm = TensorRole::kPostAttentionNorm,
     .centred_norms = true,
     .checkpoint_head_dim = 256},
    {.name = "qwen35moe",
     .classes = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"},
     .qk_norm = true,
     .gated_query = true,
     .delta_net = true,
     .experts = Presence::kAlways,
     .shared_expert = true,
     .mtp = true,
     .ffn_norm = TensorRole::kPostAttentionNorm,
     .centred_norms = true,
     .checkpoint_head_dim = 256},
};

constexpr UnsupportedTensor kUnsupported[] = {
    {"attn_sinks.weight", "attention sinks"},
    {"attn_q_norm.weight", "norms of the queries"},
    {"attn_k_norm.weight", "norms of the keys"},
    {"post_attention_norm.weight", "norms after attention"},
    {"post_ffw_norm.weight", "norms after the feed-forward"},
    {"layer_output_scale.weight", "scales of a block's output"},
    {"ffn_gate_inp.bias", "biases of the router"},
    {"exp_probs_b.bias", "biases of the router"},
    {"ffn_gate_exps.bias", "biases of experts"},
    {"ffn_up_exps.bias", "biases of experts"},
    {"ffn_down_exps.bias", "biases of experts"},
};

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
  const int64_t block = block_of(name);
  if (block < 0) return nullptr;
  const std::string_view rest = name.substr(name.find('.', name.find('.') + 1) + 1);
  const auto* found = std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                                   [&](const UnsupportedTensor& t) { return t.name == rest; });
  return found == std::end(kUnsupported) ? nullptr : found;
}

}  // namespace quire
