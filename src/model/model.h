// A loaded model and its forward pass. One class per family of architectures; each forward reads top to
// bottom.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "cache/storage.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/weights.h"

namespace quire {

// Sees named intermediates of a step, to compare two implementations layer by layer. Layer -1: outside the
// blocks.
using LayerProbe = std::function<void(std::string_view name, int layer, const Tensor& value)>;

// One step's batch. Rows [segment.row, row + count) hold that sequence's tokens.
struct StepInputs {
  std::span<const int32_t> tokens;  // [T], each a valid id
  std::span<const Segment> segments;
  std::span<const int32_t> logit_rows;  // rows whose next-token logits are wanted, in this order
  const LayerProbe* probe = nullptr;
  // Every row is a generated token of an engine that runs few sequences: products may take the integer
  // or the vector kernel.
  bool generated = false;
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
  CacheShape cache_shape(Device device) const;
  // Weights converted out of the mapping (norms and other vectors that the file keeps in 16 bits).
  int64_t owned_bytes() const { return arena_.bytes; }
  // What forward multiplies by, in the order of use.
  virtual std::vector<Weight> matrices() const = 0;

  // Runs the segments through all layers, updates the caches, and writes logits [logit_rows, V] f32.
  virtual void forward(const OpContext& ctx, const StepInputs& in, const CacheStorage& cache,
                       Tensor logits) const = 0;

 protected:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}

  // What every architecture has outside its blocks.
  Status load_common(WeightLoader& w);
  // Final norm and head for the wanted rows of the residual stream x [T, D].
  void head(const OpContext& ctx, const StepInputs& in, const Tensor& x, Tensor logits) const;
  // The feed-forward part of a block, added to x; h is its normalised input.
  void feed_forward(const OpContext& ctx, const StepInputs& in, const FfnWeights& f, const Tensor& h,
                    const Tensor& x) const;
  Rope rope() const {
    return {config_.rope.style, config_.rope.n_rot, rope_table_.inv_freq, rope_table_.magnitude};
  }

  ModelConfig config_;
  WeightLoader::Arena arena_;
  RopeTable rope_table_;
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
