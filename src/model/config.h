// What a model is, read from a file's metadata and range checked: sizes, which kind of part mixes positions in each
// layer, and the spec of each kind (parts/). Specs have fields for what models of the near future need beyond what
// operators compute today; a file that asks for another value than the default of one of these is refused when it is
// read (check_supported).
// Source of keys and defaults: the GGUF description of the architectures (arch/architecture.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "arch/tensors.h"
#include "core/result.h"
#include "gguf/reader.h"
#include "parts/attention/spec.h"
#include "parts/delta_net/spec.h"
#include "parts/dense/spec.h"
#include "parts/experts/spec.h"
#include "parts/mixer.h"
#include "parts/per_layer/spec.h"

namespace quire {

struct ModelConfig {
  std::string architecture;  // "qwen35moe"
  std::string name;          // general.name, or empty
  int32_t layers = 0;        // executed in the main pass; MTP blocks follow
  int32_t mtp_layers = 0;    // that the file claims to have: nobody has looked at them yet (Model::mtp)
  int64_t d_model = 0;
  int64_t vocab = 0;
  int64_t context_length = 0;  // trained
  float eps = 1e-6f;
  int32_t ranks = 1;  // devices that share the model: the parts' numbers are those of one of them (model/shard.h)
  AttentionSpec attention;
  DeltaSpec delta;
  DenseSpec dense;
  ExpertsSpec experts;
  PerLayerSpec per_layer;
  // f(spec) for the spec of every kind.
  template <class F>
  void each_part(F f) const {
    f(attention), f(delta), f(dense), f(experts), f(per_layer);
  }
  Mixers mixers;                     // [layers]
  bool norms_after = false;          // what mixer and feed-forward add to the residual stream is normalised
  float embedding_scale = 1.0f;      // of embeddings
  float logit_soft_cap = 0.0f;       // logits are cap * tanh(logit / cap); 0: as they are
  bool layer_scales = false;         // what a layer puts out is multiplied by a number of its own
  bool pictures_in_windows = false;  // tokens of a picture see those behind them in layers with a window alone

  // Only these values are computed today.
  float residual_scale = 1.0f;  // of what a sub-block adds to the residual stream
  float logit_scale = 1.0f;     // what logits are divided by

  int32_t attention_layers() const;  // of both kinds
  bool own_kv(int64_t layer) const { return attention.own_kv(mixers, layer); }
  int32_t kv_layers() const { return attention_layers() - attention.shared_kv_layers; }  // that have their own
  // Whether it is a tensor of keys or values in a layer that has none of its own. Files may have it all the same.
  bool leaves_out(const std::optional<TensorId>& id) const;
  bool has_windows() const;  // some of them attend to a window
  int32_t delta_layers() const { return static_cast<int32_t>(mixers.size()) - attention_layers(); }
  bool has_state() const { return delta_layers() > 0; }  // sequences have a recurrent state beside their KV blocks
  // What shapes of its tensors are made of; of layers with that mixer, and of one layer.
  ModelSizes sizes(Mixer m = Mixer::kAttention) const;
  ModelSizes layer_sizes(int64_t block, Mixer m) const;
};

// Fails with a message that names the key for anything missing, out of range or contradictory, and lists the
// supported architectures for one that is not. MTP blocks are not looked at.
Result<ModelConfig> read_config(const gguf::File& file);

}  // namespace quire
