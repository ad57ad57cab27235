// A loaded model and its forward pass. One class per family of architectures; each forward reads top to
// bottom.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "cache/storage.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/step.h"
#include "model/weights.h"

namespace quire {

// Sees named intermediates of a step, to compare two implementations layer by layer. Layer -1: outside the
// blocks.
using LayerProbe = std::function<void(std::string_view name, int layer, const Tensor& value)>;

// What a forward pass takes besides the step.
struct ForwardOptions {
  // Rows of generated tokens are computed in the arithmetic for latency (docs/numerics.md).
  bool latency = false;
  const LayerProbe* probe = nullptr;
};

// Is shown the logits [n, V] f32 of a step's scored rows first ... first + n - 1. They are the pass's scratch memory:
// rows 16 bytes aligned, gone after the call.
using ScoredLogits = std::function<void(int64_t first, const Tensor& logits)>;

// Where a forward pass leaves what the step asks for: [logit_rows, V] f32, and [hidden_rows, D] f32. Empty where it asks
// for none. Scored rows are all rows of a prompt, and their logits together would be the largest thing in memory: they
// are shown a slice at a time, in ascending order.
struct ForwardOutputs {
  Tensor logits, hidden;
  const ScoredLogits* scored = nullptr;
};

// How many rows' logits are held at a time where a whole prompt's are wanted: about 64 MiB of them, on the 64-token
// grid.
int64_t logits_slice(int64_t vocab);
// Elements from one row of logits to the next: samplers read four at a time, aligned.
inline int64_t logits_pitch(int64_t vocab) {
  return (vocab + 3) / 4 * 4;
}

// What all blocks of one pass share.
struct Pass {
  const OpContext& ctx;
  const StepBatch& step;
  const CacheViews& cache;
  const ForwardOptions& options;

  int64_t latency_rows() const { return options.latency ? step.shape.decode_rows : 0; }
  void probe(std::string_view name, int layer, const Tensor& value) const {
    if (options.probe != nullptr) (*options.probe)(name, layer, value);
  }
};

// The intermediates of an attention block; gate is empty where there is none.
struct AttentionActivations {
  Tensor q_proj, k_proj,
      v_proj;      // [T, H d] (hybrid models: [T, 2 H d], query and gate per head), [T, Hkv d] twice
  Tensor q, gate;  // [T, H, d]
  Tensor mix;      // [T, H d]
};

// The multi-token-prediction block: loaded and checked; the speculative decoder will run it.
struct MtpWeights {
  Weight eh_proj;
  Tensor enorm, hnorm, head_norm;
  Weight embedding, head;  // empty: the model's own
  Tensor attn_norm, ffn_norm;
  AttentionWeights attention;
  FfnWeights ffn;
};

class Model {
 public:
  // Reads the configuration, finds and checks every tensor. The file must outlive the model: weights stay in
  // its mapping.
  static Result<std::unique_ptr<Model>> load(const gguf::File& file);
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  CacheShape cache_shape(Device device, KvCacheType kv = KvCacheType::kAuto) const;
  // Weights converted out of the mapping (norms and other vectors that the file keeps in 16 bits).
  int64_t owned_bytes() const { return arena_.bytes; }
  // Shows everything that forward reads, to place it.
  void visit(WeightVisitor& v);
  // What forward multiplies by, in the order of use.
  std::vector<Weight> matrices() const;

  // Runs a step's segments through all layers, updates the caches, and writes the outputs.
  virtual void forward(const OpContext& ctx, const StepBatch& step, const CacheViews& cache,
                       const ForwardOptions& options, const ForwardOutputs& out) const = 0;

 protected:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}

  virtual void visit_layers(WeightVisitor& v) = 0;

  // What every architecture has outside its blocks.
  Status load_common(WeightLoader& w);
  // Of the residual stream x [T, D]: final norm and head for the rows that want logits, the norm alone for those whose
  // hidden states are wanted.
  void head(const Pass& pass, const Tensor& x, const ForwardOutputs& out) const;
  // Of some rows of x; the first `latency_rows` of them in the arithmetic for latency.
  void logits(const Pass& pass, const Tensor& x, const Tensor& rows, int64_t latency_rows,
              const Tensor& out) const;
  void scored_logits(const Pass& pass, const Tensor& x, const ScoredLogits& each) const;
  void hidden_states(const Pass& pass, const Tensor& x, const Tensor& hidden) const;
  // The attention part of block `layer`, added to x; h is its normalised input.
  void attention(const Pass& pass, int layer, const AttentionWeights& w, const KvLayer& kv, const Tensor& h,
                 const AttentionActivations& a, const Tensor& x) const;
  // The feed-forward part of a block, added to x; h is its normalised input.
  void feed_forward(const Pass& pass, const FfnWeights& f, const Tensor& h, const Tensor& x) const;
  Rope rope() const { return {config_.rope.style, config_.rope.n_rot, inv_freq_, rope_table_.magnitude}; }

  ModelConfig config_;
  WeightLoader::Arena arena_;
  RopeTable rope_table_;
  Tensor inv_freq_;  // of the table, where the backend has it
  Weight embedding_, head_;
  Tensor output_norm_, output_bias_;
};

// One per family; Model::load chooses.
Result<std::unique_ptr<Model>> load_transformer(ModelConfig config, const gguf::File& file);
Result<std::unique_ptr<Model>> load_hybrid(ModelConfig config, const gguf::File& file);

// The type of activations between operators on a device.
inline DType activation_type(Device device) {
  return device == Device::kReference ? DType::kF32 : DType::kBF16;
}

}  // namespace quire
