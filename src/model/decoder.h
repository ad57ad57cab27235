// The forward pass of every architecture: an embedding, layers of norm, mixer (attention or gated delta net), norm
// and feed-forward (dense or experts), a final norm and a head. Mixers and feed-forwards are parts (parts/), one folder
// each; here are the loop over layers and what is between them. It reads from top to bottom; in what architectures
// differ is in the configuration and in which weights there are.
// Sources: "LLaMA" (arXiv:2302.13971), "Qwen2" (arXiv:2407.10671), "Qwen3" (arXiv:2505.09388).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "cache/storage.h"
#include "model/config.h"
#include "model/layer_range.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/all_reduce/ranks.h"
#include "ops/gemm/token_rounding.h"
#include "parts/mtp/mtp.h"

namespace quire {

// What a forward pass takes besides the step.
struct ForwardOptions {
  // Rows of generated tokens are computed in the arithmetic for latency (docs/numerics.md).
  bool latency = false;
  // What rows of prompts become before weights of few bits are multiplied with them (likewise). Not those of the head.
  TokenRounding prompts = TokenRounding::kNone;
  // Nothing is wanted of the pass but what it leaves in the caches: it ends there.
  bool caches_only = false;
  const LayerProbe* probe = nullptr;
  RankLink* ranks = nullptr;  // of a decoder that is one rank's (ModelConfig::ranks)
};

// Is shown the logits [n, V] f32 of a step's scored rows first ... first + n - 1. They are the pass's scratch memory:
// rows 16 bytes aligned, gone after the call.
using ScoredLogits = std::function<void(int64_t first, const Tensor& logits)>;

// Where a forward pass leaves what the step asks for: [logit_rows, V] f32, and [hidden_rows, D] f32. Empty where it
// asks for none. Scored rows are all rows of a prompt, and their logits together would be the largest thing in
// memory: they are shown a slice at a time, in ascending order.
// `states`, if not empty, takes the hidden states of all rows after the final norm, [T, D] f32.
struct ForwardOutputs {
  Tensor logits, hidden, states;
  const ScoredLogits* scored = nullptr;
};

// How many rows' logits are held at a time where a whole prompt's are wanted: about 64 MiB of them, on the 64-token
// grid.
int64_t logits_slice(int64_t vocab);
// Elements from one row of logits to the next: samplers read four at a time, aligned.
inline int64_t logits_pitch(int64_t vocab) {
  return (vocab + 3) / 4 * 4;
}

// The type of activations between operators on a device.
inline DType activation_type(Device device) {
  return device == Device::kReference ? DType::kF32 : DType::kBF16;
}

// Everything that a pass reads of a model, as views.
struct DecoderWeights {
  MtpInput input;  // empty: of an ordinary decoder, whose input is the embedding
  PerLayerInput per_layer;
  Weight embedding, head;  // the same where they are tied, but that the embedding may have a factor
  Tensor output_norm, output_bias;
  // The rows of the whole head that each rank has: from an entry to the next. `head` and `output_bias` are this one's.
  std::array<int64_t, RankLink::kMost + 1> head_begins{};
  int32_t rank = 0;
  // [rows of the whole head] i32, ascending: the tokens that its rows stand for; empty: their own numbers.
  Tensor head_tokens;
  Rope rope, local_rope;  // the second one of layers that attend to a window
  std::vector<LayerWeights> layers;
  int32_t first_kv_layer = 0;  // of the caches' layers of attention
};

struct Activations;
struct MtpWeights;

// A value: copies share the configuration and see the same weights, which somebody else owns (Model, or a backend).
class Decoder {
 public:
  // `config` and `weights` belong together: one entry of layers for each of the configuration's mixers, of that kind.
  Decoder(std::shared_ptr<const ModelConfig> config, DecoderWeights weights);

  const ModelConfig& config() const { return *config_; }
  // DecoderWeights::head_tokens; null where there are none.
  const int32_t* head_tokens() const { return w_.head_tokens.empty() ? nullptr : w_.head_tokens.as<int32_t>(); }
  // Layers of attention that the caches have at least.
  int32_t kv_layers() const;
  // The part with these layers, whose caches are those of these layers alone. What comes before all layers belongs to
  // the first part, and what comes behind them to the last; with `drafts` the last part has the embedding as well,
  // which a block for multi-token prediction behind it reads.
  Decoder part(LayerRange layers, bool drafts = false) const;
  const LayerRange& layers() const { return range_; }
  bool begins() const { return range_.first == 0; }                        // takes tokens, not StepBatch::stream
  bool ends() const { return range_.end == std::ssize(config_->mixers); }  // has outputs
  // Shows everything that forward reads, in the order of use.
  void visit(WeightVisitor& v) const;
  // This decoder with its weights where `v` put them.
  Decoder placed(WeightPlacer& v) const;

  // Runs a step's segments through all layers, updates the caches, and writes the outputs. A part that does not end
  // leaves the residual stream in StepBatch::stream.
  void forward(const OpContext& ctx, const StepBatch& step, const CacheViews& cache, const ForwardOptions& options,
               const ForwardOutputs& out) const;

 private:
  struct Pass;
  struct CachesSoFar;

  void input(const Pass& pass, const Activations& s) const;
  void mix(const Pass& pass, const LayerWeights& l, CachesSoFar& caches, const PartOutput& to,
           const Activations& s) const;
  void feed_forward(const Pass& pass, const LayerWeights& l, const PartOutput& to, const Activations& s) const;
  struct PartResult;
  void add_result(const Pass& pass, const PartResult& r, const Activations& s) const;
  void head(const Pass& pass, const Tensor& x, const ForwardOutputs& out) const;
  void logits(const Pass& pass, const Tensor& x, const Tensor& rows, int64_t latency_rows, const Tensor& out) const;
  void multiply_head(const Pass& pass, const Tensor& h, int64_t latency_rows, const Tensor& out) const;
  void scored_logits(const Pass& pass, const Tensor& x, const ScoredLogits& each) const;
  void hidden_states(const Pass& pass, const Tensor& x, const Tensor& hidden) const;

  std::shared_ptr<const ModelConfig> config_;
  DecoderWeights w_;
  LayerRange range_;  // of w_.layers; others are empty

  friend Decoder mtp_decoder(const Decoder& main, const MtpWeights& block, int64_t head_rows);
};

// What a block for multi-token prediction reads of its own. Empty where it has the model's.
struct MtpWeights {
  MtpInput input;
  LayerWeights layer;
  Weight embedding;
  MtpHead head;
};
void visit(MtpWeights& w, WeightPlacer& v);

// The block as a decoder of one layer behind the main one's: a row's token is what follows a position,
// StepBatch::hidden that position's hidden state, and the logits tell of the token after it. `block` lies where the
// main one's weights do. Its keys and values are those of one more layer of the caches. Of the head only the first
// `head_rows` are multiplied by: tokens that come later are never drafted (byte-level BPE numbers tokens by how common
// they are).
Decoder mtp_decoder(const Decoder& main, const MtpWeights& block, int64_t head_rows);

}  // namespace quire
