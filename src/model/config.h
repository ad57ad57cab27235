// What a model is, read from a file's metadata and range checked. Source of keys and defaults: the GGUF
// description of the architectures llama, qwen2, qwen3, qwen3moe, qwen35 and qwen35moe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"
#include "gguf/reader.h"
#include "ops/attention/attention.h"

namespace quire {

struct RopeConfig {
  Rope::Style style = Rope::Style::kHalves;
  int32_t n_rot = 0;
  float freq_base = 10000.0f;
  enum class Scaling { kNone, kLinear, kYarn } scaling = Scaling::kNone;
  float factor = 1.0f;
  float attn_factor = 1.0f;
  int64_t original_context = 0;
};

// The gated-delta-net part of a hybrid model.
struct DeltaConfig {
  int32_t conv_kernel = 0;  // Kc
  int32_t key_heads = 0, value_heads = 0;
  int32_t key_dim = 0, value_dim = 0;
  int64_t conv_channels() const {
    return 2 * int64_t{key_heads} * key_dim + int64_t{value_heads} * value_dim;
  }
};

struct ModelConfig {
  std::string architecture;  // "qwen35moe"
  std::string name;          // general.name, or empty
  bool hybrid = false;       // gated delta net + gated attention
  int32_t layers = 0;        // executed in the main pass; MTP blocks follow
  int32_t mtp_layers = 0;
  int64_t d_model = 0;
  int64_t vocab = 0;
  int64_t context_length = 0;  // trained
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qk_norm = false;
  float eps = 1e-6f;
  RopeConfig rope;
  int64_t d_ff = 0;     // dense FFN
  int32_t experts = 0;  // 0: dense
  int32_t top_k = 0;
  int64_t d_ff_expert = 0;
  int64_t d_ff_shared = 0;  // 0: no shared expert
  DeltaConfig delta;
  std::vector<bool> recurrent;  // [layers]: which blocks are gated delta nets

  int32_t attention_layers() const;
  int32_t delta_layers() const { return layers - attention_layers(); }
};

// Fails with a message that names the key for anything missing, out of range or contradictory, and lists the
// supported architectures for one that is not.
Result<ModelConfig> read_config(const gguf::File& file);

}  // namespace quire
