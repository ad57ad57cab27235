// Small random models of every supported architecture. Nothing of them is stored: the weights follow from a
// counter- based generator, which tools/make_tiny_goldens.py repeats in Python, so that
// tests/data/golden/<name>.json holds what the transformers library computes with the very same weights
// (docs/testing.md).
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "core/float.h"
#include "core/result.h"

namespace quire::test {

// A tensor as transformers names and shapes it: row-major, shape[0] slowest.
struct HfTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<bf16> values;
};

// One model. Counts that do not apply are 0.
struct TinyModel {
  std::string name;          // "tiny-qwen3"
  std::string architecture;  // as in GGUF: "qwen3"
  int seed = 0;
  int64_t vocab = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  float rms_eps = 0, rope_theta = 0;
  bool tied = false;  // no output.weight
  int64_t experts = 0, experts_used = 0, expert_ffn = 0, shared_ffn = 0;
  // Gated delta net: key heads, value heads, state size; layer i is full attention iff (i + 1) % interval ==
  // 0.
  int64_t interval = 0, k_heads = 0, v_heads = 0, state = 0;
  int64_t n_rot = 0;  // rotated elements of a head; 0: all
  std::vector<int32_t> rope_sections = {};
  bool llama3_rope = false;  // the file has rope_freqs.weight
  bool mistral = false;      // of the architecture llama, by its own class
  // Divisors of the rotary frequencies for contexts up to `original`, and others beyond it; 0: none.
  struct LongRope {
    int64_t original = 0;
    float magnitude = 0;
  } long_rope = {};
  // A router of sigmoids with a selection bias, in groups, behind dense layers.
  int64_t dense = 0, groups = 0, used_groups = 0;
  float routed_scale = 0;
  // Layers that attend to a window: all but each window_interval-th.
  int64_t window = 0, window_interval = 0;
  float local_theta = 0;
  struct Yarn {
    float factor = 0;
    int64_t original = 0;
  } yarn = {};
  int64_t scalar = 0;  // 0: none; scores are scaled by 1 / sqrt(scalar)
  // Gemma 4: what heads are in layers that attend to all. With KV heads of their own, values are what keys are
  // projected to there. Of a head's pairs so many rotate.
  int64_t global_head_dim = 0, global_kv_heads = 0, rotated_pairs = 0;
  float soft_cap = 0;
  // Of Gemma 4's small models: the size of embeddings that each layer has of its own, and how many of the last layers
  // attend to keys and values of others; their feed-forward may be twice as wide.
  int64_t per_layer = 0, shared_kv = 0;
  bool double_wide = false;

  bool gemma4() const { return architecture == "gemma4"; }
  bool wrapped() const { return architecture.starts_with("qwen3vl"); }  // folders have the text model in a wrapper
  bool gpt_oss() const { return architecture == "gpt-oss"; }
  bool hybrid() const { return interval > 0; }
  bool packed_delta() const { return architecture == "qwen3next"; }  // delta nets' inputs lie packed by key heads
  bool fused_gate_up() const { return architecture == "phi3" || architecture == "glm4"; }
  bool norms_after() const { return architecture == "glm4" || architecture.starts_with("gemma"); }
  bool centred_norms() const { return hybrid() || architecture == "gemma3"; }
  bool qkv_bias() const { return architecture == "qwen2" || architecture.starts_with("glm4") || gpt_oss(); }
  bool qk_norm() const {
    return architecture.starts_with("qwen3") || architecture == "glm4moe" || architecture.starts_with("gemma");
  }
  bool windowed(int64_t layer) const { return window > 0 && (layer + 1) % window_interval != 0; }
  int64_t rotated() const { return n_rot > 0 ? n_rot : head_dim_of(layers); }
  // Of a layer; layer `layers` stands for those that attend to all.
  bool global(int64_t layer) const { return gemma4() && (layer == layers || !windowed(layer)); }
  int64_t head_dim_of(int64_t layer) const { return global(layer) ? global_head_dim : head_dim; }
  int64_t kv_heads_of(int64_t layer) const { return global(layer) && global_kv_heads > 0 ? global_kv_heads : kv_heads; }
  bool keys_as_values(int64_t layer) const { return global(layer) && global_kv_heads > 0; }
  bool own_kv(int64_t layer) const { return layer < layers - shared_kv; }
  int64_t ffn_of(int64_t layer) const { return double_wide && !own_kv(layer) ? 2 * ffn : ffn; }
  // The divisors of long_rope: float32 holds them exactly.
  std::vector<float> short_factors() const { return factors(1, 0.125F); }
  std::vector<float> long_factors() const { return factors(2, 0.5F); }
  bool full_attention(int64_t layer) const { return !hybrid() || (layer + 1) % interval == 0; }
  // Inner width of one expert. Mixtral's experts are as wide as `ffn` says.
  int64_t expert_width() const { return expert_ffn > 0 ? expert_ffn : ffn; }
  std::string pre_tokenizer() const;
  bool add_bos() const { return llama3_rope; }

  // The golden outputs in the source tree.
  std::string golden_path() const;
  // All weights, in order of name. `fnv1a64` of them is in the golden file as "weights_fnv1a64", in
  // hexadecimal.
  std::vector<HfTensor> hf_tensors() const;
  // A complete model file: metadata, tokenizer, tensors as a converter would lay them out (bf16 matrices, f32
  // rest).
  Status write_gguf(const std::string& path) const;

 private:
  std::vector<float> factors(float first, float step) const {
    std::vector<float> f;
    for (int64_t i = 0; i < n_rot / 2 && long_rope.original > 0; ++i) f.push_back(first + step * static_cast<float>(i));
    return f;
  }
};

std::vector<TinyModel> tiny_models();

// Shown by GoogleTest for a parameter of this type.
inline void PrintTo(const TinyModel& model, std::ostream* out) {
  *out << model.name;
}

// The generator of all weights: element i follows from seed, name and i, spread evenly within `spread` of `centre`
// (tools/make_tiny_goldens.py).
std::vector<bf16> golden_values(uint32_t seed, std::string_view name, int64_t count, double centre, double spread);

// FNV-1a over each tensor's name, then its elements as little-endian 16-bit words.
uint64_t fnv1a64(const std::vector<HfTensor>& tensors);

// The file of a model in the temporary directory, removed with the object. Dies with a message if it cannot
// be written.
class TinyModelFile {
 public:
  explicit TinyModelFile(const TinyModel& model);
  TinyModelFile(const TinyModelFile&) = delete;
  TinyModelFile& operator=(const TinyModelFile&) = delete;
  ~TinyModelFile();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace quire::test
