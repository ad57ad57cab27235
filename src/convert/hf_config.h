// What config.json says of a model, checked and in the terms of the GGUF metadata.
// Source: the configuration classes of the transformers library (names and defaults).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arch/architecture.h"
#include "convert/json.h"

namespace quire::convert {

struct RopeScaling {
  enum class Kind { kNone, kLinear, kYarn, kLlama3, kLongRope, kProportional };
  Kind kind = Kind::kNone;
  double factor = 1;
  int64_t original_context = 0;                    // yarn, llama3 and longrope
  double attn_factor = 1;                          // of cos and sin; yarn: on top of the 0.1 ln(factor) + 1 of readers
  double low_factor = 1, high_factor = 4;          // llama3
  std::vector<float> short_factors, long_factors;  // longrope: divisors up to original_context and beyond
  int64_t pairs = 0;                               // proportional: pairs of elements of a head that rotate
};

// Counts that do not apply are 0.
struct HfConfig {
  std::string class_name;             // "Qwen3ForCausalLM"
  const Architecture* row = nullptr;  // what it becomes; never null in what read_hf_config returns
  int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, context = 0;
  double rms_eps = 0, rope_theta = 10000;
  RopeScaling rope;
  double local_rope_theta = 0;  // of layers with a window
  int64_t window = 0;           // positions that these attend to; 0: there are no such layers
  int64_t window_interval = 0;  // every so many-th layer has none; 0: windowed says which layers have one
  std::vector<bool> windowed;   // with a window: [layers]
  int64_t window_kv_heads = 0, window_head_dim = 0;  // of these layers; 0: as of the others
  bool keys_as_values = false;                       // layers without a window have no projection of values
  int64_t shared_kv_layers = 0;                      // the last so many have no keys and values of their own
  int64_t shared_ffn_factor = 1;                     // how many times as wide as the others their feed-forward is
  int64_t d_per_layer = 0;                           // of the embeddings that each layer has of its own; 0: none
  double logit_soft_cap = 0;                         // 0: none
  double score_scale = 0;                            // of attention's scores; 0: 1 / sqrt(head_dim)
  int64_t n_rot = 0;                                 // rotated dimensions of a head
  std::vector<int32_t> rope_sections;                // with delta nets: four
  bool tied = false;                                 // the head is the embedding, unless the model folder has another
  bool qk_norm = false;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;  // which of the linear maps have one
  int64_t experts = 0, experts_used = 0, expert_ffn = 0, shared_ffn = 0;
  int64_t shared_experts = 0, dense_layers = 0;  // where the architecture's row has `any_router`, and what follows
  int64_t groups = 1, used_groups = 1;
  double routed_scale = 1;
  bool normalised = true;
  // Gated delta net. recurrent[i]: block i is one.
  int64_t conv_kernel = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::vector<bool> recurrent;
  int64_t interval = 0;          // recurrent[i] == ((i + 1) % interval != 0) for all i; 0: no such number
  int64_t deepstack_levels = 0;  // of pictures' rows, which go to the first layers
  int64_t mtp_layers = 0;        // set to 0 by the plan if the model folder has none of their tensors
  bool gptq_v2 = false;          // of weights quantised by GPTQ: how zero points are stored
  // Of activations in 8-bit floats that FP8 weights were made for: "dynamic", "static" (scales in the folder), or none.
  std::string activation_scheme;
  std::optional<int64_t> bos, eos, pad;
  std::vector<int64_t> ends;       // all of eos_token_id, of the whole and of its text model
  std::vector<std::string> notes;  // what was read and is not kept

  bool moe() const { return experts > 0; }
  bool dense(int64_t block) const { return !moe() || block < dense_layers; }
  int64_t blocks() const { return layers + mtp_layers; }
  bool has_window(int64_t block) const {
    return block < static_cast<int64_t>(windowed.size()) && windowed[static_cast<size_t>(block)];
  }
  bool own_kv(int64_t block) const { return block < layers - shared_kv_layers || block >= layers; }
  int64_t ffn_width(int64_t block) const { return own_kv(block) ? ffn : ffn * shared_ffn_factor; }
  ModelSizes sizes(bool of_window = false) const;
  ModelSizes layer_sizes(int64_t block) const;  // of one block
};

// Adds the token ids of a number or a list of numbers to `out`; null: none.
void add_ids(const nlohmann::json* ids, std::vector<int64_t>& out);
// The first of them; none if that is no id.
std::optional<int64_t> first_id(const nlohmann::json* ids);

// `root` is the whole config.json. Errors name the key. What a reader of GGUF would compute differently
// (another activation, another kind of RoPE scaling, dense layers among the experts) is refused.
Result<HfConfig> read_hf_config(const nlohmann::json& root);

// "LlamaForCausalLM, MixtralForCausalLM, ..."
std::string supported_classes();

}  // namespace quire::convert
