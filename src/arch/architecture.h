// The architectures that Quire runs and converts, one row each: in what their blocks differ, and what they are
// called. A model of another architecture that is made of the same parts is another row.
// Source: the GGUF description of these architectures and their model classes in the transformers library.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "arch/tensors.h"

namespace quire {

enum class RopePairs : uint8_t {
  kNeighbours,  // elements 2j and 2j + 1 of a head rotate together
  kHalves,      // elements j and j + n_rot / 2
};

enum class Presence : uint8_t { kNever, kMaybe, kAlways };

// A tensor that this architecture's model folders call otherwise than the table of tensors says.
struct FolderTensorName {
  TensorRole role = TensorRole::kTokenEmbedding;
  std::string_view name = {};  // behind the block's prefix; empty: no entry
};

// Numbers of config.json that its classes may leave out; 0: they may not.
struct FolderDefaults {
  int64_t vocab = 0, context = 0, heads = 0;
  int64_t kv_heads = 0;  // -1: as many as there are heads
  int64_t head_dim = 0;  // 0: hidden_size / heads
  double rms_eps = 0, rope_theta = 1e4;
  int64_t window = 4096;
  int64_t original_context = 0;  // that a scaled RoPE starts from, whatever its parameters say; 0: they say it
  int64_t per_layer = 0;         // of embeddings that each layer has of its own
  bool tied = false, attention_bias = false;
};

struct Architecture {
  std::string_view name;                         // general.architecture, and what its metadata keys begin with
  std::array<std::string_view, 3> classes = {};  // of the transformers library

  // Attention.
  RopePairs rope = RopePairs::kHalves;
  double rotary_share = 0;              // of a head's elements that rotate where config.json says none; 0: always all
  bool rope_sections = false;           // files say how RoPE is divided among the axes of images; for text it is one
  Presence qk_norm = Presence::kNever;  // every head of queries and keys is normalised before it rotates
  bool gated_query = false;             // the query projection has a gate for each head of attention's result
  bool qkv_bias = false;                // model folders always have them; of files, those that are found are used
  bool output_bias = true;              // attention_bias of config.json means the output's projection as well
  bool fused_qkv = false;               // model folders have the three projections in one tensor, and so have files
  int64_t window_interval = 0;          // every so many-th layer attends to all, the others to a window; 0: all to all
  double proportional_share = 0;        // model folders rotate this share of whole heads' pairs alone; 0: all rotate
  double local_rope_theta = 0;          // of layers with a window, where no key says otherwise; 0: as of the others
  bool own_window_heads = false;        // layers with a window may have heads of another number and size
  bool last_attends_to_all = false;     // model folders' last layer does, whatever their list says
  bool pictures_in_windows = false;     // tokens of a picture see those behind them in layers with a window alone
  bool value_norm = false;              // every head of values is normalised, without weights
  bool keys_as_values = false;          // layers without a projection of values take that of keys, before its norm
  bool shared_kv = false;               // the last layers may attend to keys and values of earlier ones of their kind
  double score_scale = 0;               // of scores; 0: 1 / sqrt(head size)
  bool scaled_scores = false;           // the scale of scores may be another than 1 / sqrt(head size)
  bool sinks = false;                   // of each head a score beside those of the keys
  bool exact_yarn = false;              // the ramp of YaRN begins and ends between whole dimensions
  int64_t hidden_scaled_layers = 0;  // files of so many blocks without a key scale scores by 1 / sqrt(hidden / heads)

  // Gated delta nets.
  bool delta_net = false;            // the mixer of most blocks is a gated delta net
  bool grouped_value_heads = false;  // value heads of a key head follow each other; inputs lie packed by key heads

  // Feed-forward.
  bool fused_gate_up = false;  // a dense feed-forward's gate and up are one tensor, the gate's rows first
  bool gelu = false;           // GELU (tanh) in place of SiLU
  Presence experts = Presence::kNever;
  bool shared_expert = false;
  bool shared_router = true;  // the shared expert has a gate
  bool any_router = false;    // keys may ask for a sigmoid router, groups, and a scale; the first layers may be dense
  // Router and experts have biases, SwiGLU is clamped (GateActivation::kSwigluOai), and model folders have the rows of
  // gate and up in turns.
  bool oai_experts = false;
  bool transposed_experts = false;  // model folders that have all experts in one tensor have columns in place of rows
  bool experts_as_wide = false;     // as feed_forward_length, where no key says otherwise
  // Layers with experts have a dense feed-forward as well. Each reads the residual stream through a norm of its own,
  // the router through a third one; what each adds is normalised, and the sum once more. A number of its own weights
  // each expert (the factor of its down matrix), and gate and up of experts are one tensor.
  bool dense_beside_experts = false;

  // The whole.
  bool mtp = false;                            // blocks for multi-token prediction may follow the others
  bool mtp_left_out = false;                   // the same, but none is read or converted
  TensorRole ffn_norm = TensorRole::kFfnNorm;  // the tensor that normalises what the feed-forward reads
  bool norms_after = false;                    // what mixer and feed-forward add is normalised, too
  bool centred_norms = false;                  // model folders keep norms as their difference from 1
  bool scaled_embedding = false;               // embeddings are multiplied by sqrt(hidden size)
  bool layer_scales = false;                   // what a layer puts out is multiplied by a number of its own
  bool capped_logits = false;                  // logits may have a soft cap
  // Layers may have embeddings of tokens of their own, which go through a gate of the residual stream behind the
  // feed-forward. Only with norms_after.
  bool per_layer_embeddings = false;

  std::array<FolderTensorName, 5> folder_names = {};
  FolderDefaults folder_defaults = {};
};

std::span<const Architecture> architectures();
const Architecture* find_architecture(std::string_view name);  // null if there is no such row
std::string architecture_names();                              // "llama, qwen2, ..."

// A tensor that would change what a block computes and that no operator takes. A file that has one in a block is
// refused, in these words.
struct UnsupportedTensor {
  std::string_view name;  // in GGUF, behind the block's prefix
  std::string_view what;
};
// What such a tensor is, or null: `name` as in the file. Only of names that the architecture does not read.
const UnsupportedTensor* find_unsupported_tensor(std::string_view name);

// Whether a tensor that the architecture does not read changes nothing of the text: parts for images and sound, and
// what follows from the metadata. A file with any other is refused.
bool may_stay_unread(std::string_view name);

}  // namespace quire
