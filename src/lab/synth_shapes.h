// Shapes of known models, for files of random weights.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "command/encoding.h"
#include "gguf/writer.h"

namespace quire::cli {

// Numbers that do not apply are 0.
struct SynthShape {
  std::string_view name, summary;
  std::string_view architecture;
  int64_t layers = 0, d_model = 0, heads = 0, kv_heads = 0, head_dim = 0, n_rot = 0, d_ff = 0, vocab = 0;
  bool tied = false;                                  // the head is the embedding
  int64_t key_heads = 0, value_heads = 0, state = 0;  // gated delta net: three blocks of four
  int64_t experts = 0, top_k = 0, d_ff_expert = 0, d_ff_shared = 0;
  int64_t context = 262144, window = 0;  // of the layers that the architecture gives a window; 0: no window
  float rope_theta = 0, yarn_factor = 0;
  int64_t yarn_context = 0;  // what the model was trained with before YaRN; 0: no YaRN
  float linear_factor = 0;   // positions of layers without a window are divided by it; 0: they are not
  // Gemma 4: heads of layers with a window, embeddings of each layer, layers with keys and values of their own (those
  // behind them share these), and the cap of logits.
  int64_t window_head_dim = 0, per_layer = 0, own_kv_layers = 0;
  float soft_cap = 0;
  bool mtp = false;  // with a block for multi-token prediction behind the layers
  // Of its vision tower, if that goes to the first layers as well: which blocks do.
  std::span<const int64_t> deepstack = {};
  bool images = false;  // the tokenizer has what stands for pictures, and a chat template that puts it there

  bool hybrid() const { return key_heads > 0; }
  bool gemma() const { return architecture == "gemma3"; }
  bool gemma4() const { return architecture == "gemma4"; }
  bool sees() const { return hybrid() || gemma() || gemma4() || !deepstack.empty(); }  // models with a vision tower
  bool full_attention(int64_t layer) const { return !hybrid() || layer % 4 == 3 || layer == layers; }
  bool windowed(int64_t layer) const { return gemma4() && layer % 6 != 5 && layer + 1 < layers; }
  bool own_kv(int64_t layer) const { return own_kv_layers == 0 || layer < own_kv_layers; }
};

std::span<const SynthShape> synth_shapes();

// How the values of a tensor are drawn.
enum class SynthValues {
  kMatrix,    // zero mean, variance 1 / row length
  kOnes,      // norms
  kDecay,     // ssm_a: -4 to -0.25
  kTimeStep,  // ssm_dt: -4 to -1
  kBias,      // -0.1 to 0.1; also sinks
  kLow,       // -16: a lower bound
  kHigh,      // 16: an upper one
};

struct SynthTensor {
  std::string name;
  std::vector<int64_t> dims;  // ne order
  SynthValues values = SynthValues::kMatrix;

  EncodingGroup group() const { return encoding_group(name, static_cast<int>(dims.size())); }
};

std::vector<SynthTensor> synth_tensors(const SynthShape& s);

// Everything but general.file_type: hyperparameters, and a byte-level tokenizer without merges whose
// vocabulary is padded to its size with unused tokens.
void add_synth_metadata(const SynthShape& s, gguf::Writer& w);

inline constexpr int64_t kMinSynthVocab = 512;  // 256 bytes, three special tokens, and some

}  // namespace quire::cli
