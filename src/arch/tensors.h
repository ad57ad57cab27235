// The tensors of language models: what each is for, its name in GGUF files and in Hugging Face model folders, its kind
// and its shape. Conversion, loading and accounting take names and shapes from here alone.
// Source: the naming of GGUF files and of the transformers library (docs/convert.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quire {

// The numbers that shapes of tensors are made of. Those that a model has no use for are 0.
struct ModelSizes {
  int64_t vocab = 0, d_model = 0, layers = 0;
  int64_t d_per_layer = 0;  // of what each layer has of a token beside the residual stream
  int64_t heads = 0, kv_heads = 0, head_dim = 0, n_rot = 0;  // attention
  bool gated_query = false;                                  // of each head, rows of a gate follow the query's
  int64_t conv_kernel = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;  // gated delta nets
  bool grouped_value_heads = false;  // those of a key head follow each other; otherwise they go round the key heads
  int64_t d_ff = 0;                  // dense feed-forward
  int64_t experts = 0, d_ff_expert = 0, d_ff_shared = 0;
};

// One dimension of a shape.
enum class Extent : uint8_t {
  kOne,
  kVocab,
  kHidden,           // D: the residual stream
  kTwiceHidden,      // an embedding and a hidden state, side by side
  kPerLayer,         // P: what one layer has of a token beside the residual stream
  kAllPerLayer,      // L P: what all layers have
  kQueryRows,        // of the query projection: H d, or 2 H d with gates
  kHeads,            // H d: what attention puts out
  kHeadCount,        // H
  kKvHeads,          // Hkv d
  kQkvRows,          // query, key and value projections in one
  kHeadDim,          // d
  kRotations,        // pairs of elements of a head that rotate
  kFfn,              // F
  kTwiceFfn,         // gate and up in one
  kExpertCount,      // E
  kExpertFfn,        // Fe
  kTwiceExpertFfn,   // gate and up of an expert in one
  kSharedFfn,        // Fs
  kConvKernel,       // Kc
  kConvChannels,     // 2 Hk Dk + Hv Dv
  kDeltaInner,       // Hv Dv
  kDeltaHeads,       // Hv
  kTwiceDeltaHeads,  // alpha and beta in one
  kDeltaPacked,      // 2 Hk Dk + 2 Hv Dv: what goes through the convolution, and z
  kDeltaHeadDim,     // Dv
};
int64_t size_of(Extent e, const ModelSizes& s);

enum class TensorRole : uint8_t {
  // Of the whole model.
  kTokenEmbedding,
  kPerLayerEmbedding,   // of each token a row for each layer, one behind the other
  kPerLayerProjection,  // of the token's embedding, to as many
  kPerLayerNorm,        // of each layer's part of that
  kOutputNorm,
  kOutput,  // the head; absent where the embedding serves
  kOutputBias,
  kRopeFreqs,  // divisors of the rotary frequencies
  kRopeShort,  // the same up to the context that the model was first trained for
  kRopeLong,   // and beyond it
  // Of blocks: norms.
  kAttnNorm,           // before the mixer (attention or delta net)
  kFfnNorm,            // before the feed-forward
  kPostAttentionNorm,  // the same under another name, or of what the mixer adds: an architecture's row says which
  kPostFfnNorm,        // of what the feed-forward adds
  kPostDenseNorm,      // of a dense feed-forward and experts side by side: of what the dense one adds
  kExpertsNorm,        // before the experts
  kPostExpertsNorm,    // of what they add
  kLayerScale,         // one number that the layer's output is multiplied by
  // Of blocks: what the residual stream takes from the layer's own embedding of a token.
  kPerLayerGate,  // of the residual stream; its activation multiplies the embedding
  kPerLayerOut,   // back to the residual stream
  kPostPerLayerNorm,
  // Attention.
  kAttnQ,
  kAttnQBias,
  kAttnK,
  kAttnKBias,
  kAttnV,
  kAttnVBias,
  kAttnQkv,  // the three in one
  kAttnQkvBias,
  kAttnOutput,
  kAttnOutputBias,
  kAttnQNorm,
  kAttnKNorm,
  kAttnSinks,  // of each head a score that takes weight from the others and has no value
  // Gated delta net.
  kDeltaQkv,
  kDeltaZ,
  kDeltaAlpha,
  kDeltaBeta,
  kDeltaBetaAlpha,  // the two in one: of each key head its value heads' rows of beta, then those of alpha
  kDeltaPackedIn,   // of model folders: of each key head its rows of q, k, v and z
  kDeltaConv,
  kDeltaA,
  kDeltaDtBias,
  kDeltaNorm,
  kDeltaOut,
  // Dense feed-forward.
  kFfnGate,
  kFfnGateBias,
  kFfnUp,
  kFfnGateUp,  // gate and up in one
  kFfnUpBias,
  kFfnDown,
  kFfnDownBias,
  // Experts.
  kRouter,
  kRouterBias,
  kRouterScale,          // weights of a norm before the router, times the root of the hidden size
  kRouterSelectionBias,  // added to the scores that experts are chosen by
  kExpertsGateUp,        // gate and up in one
  kExpertsGate,
  kExpertsUp,
  kExpertsDown,
  kExpertsGateUpBias,  // of model folders, which have the two in turns
  kExpertsGateBias,
  kExpertsUpBias,
  kExpertsDownBias,
  kSharedRouter,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  // Multi-token prediction.
  kMtpProjection,
  kMtpEmbeddingNorm,
  kMtpHiddenNorm,
  kMtpHeadNorm,
  kMtpEmbedding,
  kMtpHead,
  kMtpHeadTokens,  // of each row of kMtpHead, how far its token is from the row's number
};
inline constexpr int kTensorRoles = static_cast<int>(TensorRole::kMtpHeadTokens) + 1;

enum class TensorKind : uint8_t {
  kMatrix,   // multiplied: [rows, cols] in any type that can be decoded
  kExperts,  // such a matrix for each expert, stacked
  kTable,    // rows are looked up
  kVector,   // [cols], or [rows, cols] where there are rows: norms, biases, taps; float32 when loaded
  kNumbers,  // [any], i32 or i64
};

enum class TensorPlace : uint8_t {
  kOnce,   // of the whole model
  kBlock,  // in blocks: "blk.N." in GGUF, "model.layers.N." in model folders
  kMtp,    // beside a multi-token-prediction block: "blk.N." in GGUF, "mtp." in model folders
};

struct TensorSpec {
  TensorRole role;
  TensorPlace place;
  TensorKind kind;
  std::string_view name;  // in GGUF, behind the block's prefix: "attn_q.weight"
  Extent rows, cols;
  // In model folders, likewise: as most classes have it, as Mixtral has it, and in one piece for all experts. Empty
  // where there is no other name. In names of single experts {} stands for the number.
  std::string_view in_folder = {}, mixtral = {}, packed = {};
};

const TensorSpec& tensor_spec(TensorRole role);
std::span<const TensorSpec> all_tensor_specs();  // in the order of TensorRole

// Without ".weight" at its end, if it has that.
std::string_view without_weight(std::string_view name);
// "blk.3.attn_q.weight"; `block` matters where the role is one of blocks.
std::string tensor_name(TensorRole role, int64_t block = 0);
// The same without ".weight": what the names of a matrix's side tensors (".scale", ".input_scale") begin with.
std::string tensor_stem(TensorRole role, int64_t block = 0);

// What a name in a GGUF file stands for. Two roles share the name attn_qkv; then it is the first, and both are
// matrices.
struct TensorId {
  const TensorSpec* spec = nullptr;
  int64_t block = -1;  // -1: of the whole model
};
std::optional<TensorId> find_tensor_spec(std::string_view name);
// 12 for "blk.12.ffn_up.weight", whatever stands behind it; -1 outside of blocks.
int64_t block_of(std::string_view name);

}  // namespace quire
