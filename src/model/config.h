// What a model is, read from a file's metadata and range checked: sizes, and a spec for each kind of part that its
// layers are made of. Specs have fields for what models of the near future need beyond what operators compute today;
// a file that asks for another value than the default of one of these is refused when it is read (check_supported).
// Source of keys and defaults: the GGUF description of the architectures (arch/architecture.h).
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "arch/tensors.h"
#include "core/result.h"
#include "gguf/reader.h"
#include "ops/attention/attention.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"

namespace quire {

struct RopeSpec {
  Rope::Style style = Rope::Style::kHalves;
  int32_t n_rot = 0;
  float freq_base = 10000.0f;
  enum class Scaling { kNone, kLinear, kYarn } scaling = Scaling::kNone;
  float factor = 1.0f;
  float attn_factor = 1.0f;
  int64_t original_context = 0;
  bool exact_yarn = false;  // Architecture::exact_yarn
  // Of YaRN: how far frequencies of short wavelengths keep what they were (1: whole), and between how many turns in the
  // original context the ramp lies.
  float extrapolation = 1.0f, beta_fast = 32.0f, beta_slow = 1.0f;
};

// The heads that keys and values have in a layer.
struct HeadShape {
  int32_t kv_heads = 0, head_dim = 0;
  bool operator==(const HeadShape&) const = default;
};

struct AttentionSpec {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qk_norm = false;
  bool value_norm = false;  // every head of values is normalised, without weights
  bool sinks = false;
  bool gated_query = false;  // the query projection holds a gate for each head
  float scale = 0.0f;        // of scores: 1 / sqrt(head_dim), or what the file says
  RopeSpec rope;
  // Of layers that attend to a window (Mixer::kWindowAttention).
  int64_t window = 0;  // positions, a token's own among them; 0: the model has no such layers
  RopeSpec local_rope;
  HeadShape window_heads;  // empty: as in the other layers

  // Only these values are computed today.
  float soft_cap = 0.0f;  // scores are cap * tanh(score / cap); 0: as they are
  bool causal = true;
};

// A gated delta net.
struct DeltaSpec {
  int32_t conv_kernel = 0;  // Kc
  int32_t key_heads = 0, value_heads = 0;
  int32_t key_dim = 0, value_dim = 0;
  bool grouped = false;  // value heads of a key head follow each other; otherwise they go round the key heads
  int64_t conv_channels() const { return 2 * int64_t{key_heads} * key_dim + int64_t{value_heads} * value_dim; }
};

struct FeedForwardSpec {
  int64_t d_ff = 0;             // dense; of the widest layer
  std::vector<int64_t> widths;  // the same of each layer, where they differ
  int32_t experts = 0;          // 0: all layers are dense
  int32_t dense_layers = 0;     // the first so many are dense, though the others have experts
  int32_t top_k = 0;
  int64_t d_ff_expert = 0;
  int64_t d_ff_shared = 0;      // 0: no shared expert
  bool beside_experts = false;  // a dense one beside the experts of each layer, with norms of its own
  GateActivation activation = GateActivation::kSilu;
  bool biases = false;  // router and experts have them
  ExpertChoice choice;  // without its tensors

  bool dense(int64_t block) const { return experts == 0 || block < dense_layers; }
  int64_t width(int64_t block) const { return block < std::ssize(widths) ? widths[static_cast<size_t>(block)] : d_ff; }
};

// What a layer mixes positions with.
enum class Mixer : uint8_t { kAttention, kWindowAttention, kDelta };

struct ModelConfig {
  std::string architecture;  // "qwen35moe"
  std::string name;          // general.name, or empty
  int32_t layers = 0;        // executed in the main pass; MTP blocks follow
  int32_t mtp_layers = 0;    // that the file claims to have: nobody has looked at them yet (Model::mtp)
  int64_t d_model = 0;
  int64_t vocab = 0;
  int64_t context_length = 0;  // trained
  float eps = 1e-6f;
  AttentionSpec attention;
  DeltaSpec delta;
  FeedForwardSpec ffn;
  std::vector<Mixer> mixers;     // [layers]
  int32_t shared_kv_layers = 0;  // the last so many attend to the keys and values of others: kv_layer()
  bool norms_after = false;      // what mixer and feed-forward add to the residual stream is normalised
  float embedding_scale = 1.0f;  // of embeddings
  float logit_soft_cap = 0.0f;   // logits are cap * tanh(logit / cap); 0: as they are
  bool layer_scales = false;     // what a layer puts out is multiplied by a number of its own
  int64_t d_per_layer = 0;       // of the embeddings that each layer has of its own; 0: they have none

  // Only these values are computed today.
  float residual_scale = 1.0f;  // of what a sub-block adds to the residual stream
  float logit_scale = 1.0f;     // what logits are divided by

  int32_t attention_layers() const;  // of both kinds
  // Whether a layer projects keys and values of its own, for which the caches have memory.
  bool own_kv(int64_t layer) const { return shared_kv_layers == 0 || layer < layers - shared_kv_layers; }
  // Of a layer of attention, the layer whose keys and values it attends to: itself, or the last one of its kind that
  // has its own.
  int32_t kv_layer(int32_t layer) const;
  int32_t kv_layers() const { return attention_layers() - shared_kv_layers; }  // that have their own
  // Whether it is a tensor of keys or values in a layer that has none of its own. Files may have it all the same.
  bool leaves_out(const std::optional<TensorId>& id) const;
  bool has_windows() const;  // some of them attend to a window
  int32_t delta_layers() const { return static_cast<int32_t>(mixers.size()) - attention_layers(); }
  bool has_state() const { return delta_layers() > 0; }  // sequences have a recurrent state beside their KV blocks
  HeadShape heads_of(Mixer m) const {
    const bool own = m == Mixer::kWindowAttention && attention.window_heads.head_dim > 0;
    return own ? attention.window_heads : HeadShape{attention.kv_heads, attention.head_dim};
  }
  // What shapes of its tensors are made of; of layers with that mixer, and of one layer.
  ModelSizes sizes(Mixer m = Mixer::kAttention) const;
  ModelSizes layer_sizes(int64_t block, Mixer m) const;
};

// Fails with a message that names the key for anything missing, out of range or contradictory, and lists the
// supported architectures for one that is not. MTP blocks are not looked at.
Result<ModelConfig> read_config(const gguf::File& file);

}  // namespace quire
