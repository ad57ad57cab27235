// From tensors of a file to weights of a layer: names, shapes and types are checked here, once; the operators
// only assert. Names and shapes come from the table of tensors (arch/tensors.h).
#pragma once

#include <deque>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <variant>
#include <vector>

#include "arch/architecture.h"
#include "core/tensor.h"
#include "gguf/reader.h"
#include "model/config.h"
#include "ops/op.h"

namespace quire {

// The tensor with the factors of the matrix "<stem>.weight", or null: "<stem>.scale", which some writers call
// "<stem>.weight.scale".
const gguf::TensorInfo* find_scale(const gguf::File& file, std::string_view stem);

// Finds tensors by their role. Matrices stay where they are mapped; small vectors that are not float32 in the file
// are converted into memory of the loader's arena, which must live as long as the weights. An error names the tensor.
class WeightLoader {
 public:
  struct Arena {
    std::deque<std::vector<float>> vectors;
    std::deque<std::vector<int32_t>> numbers;
    std::deque<std::vector<std::byte>> matrices;
    int64_t bytes = 0;
  };
  WeightLoader(const gguf::File& file, const ModelSizes& sizes, Arena& arena)
      : file_(file), sizes_(sizes), arena_(arena) {}

  bool has(TensorRole role, int64_t block = 0) const { return file_.find_tensor(tensor_name(role, block)) != nullptr; }
  // What shapes are made of from here on: layers of one model may differ.
  void use(const ModelSizes& sizes) { sizes_ = sizes; }
  // A matrix or table, or stacked matrices of experts, with the factors of "<stem>.scale" if present. `block`
  // matters for roles of blocks.
  Result<Weight> matrix(TensorRole role, int64_t block = 0);
  Result<Weight> optional_matrix(TensorRole role, int64_t block = 0);       // empty if the file has none
  Result<Weight> matrix_without_scale(TensorRole role, int64_t block = 0);  // "<stem>.scale" is something else
  // Of such a matrix the rows `order`, copied into the arena: where a file has them in another order than operators.
  Result<Weight> matrix_rows(TensorRole role, int64_t block, std::span<const int64_t> order);
  // Float32: [cols], or [rows, cols] where the role has rows.
  Result<Tensor> vector(TensorRole role, int64_t block = 0);
  Result<Tensor> optional_vector(TensorRole role, int64_t block = 0);
  // The same with every element times `factor`, in the arena.
  Result<Tensor> scaled_vector(TensorRole role, int64_t block, float factor);
  Tensor ones(int64_t n);
  // i32 [n], whatever n is; empty if the file has none.
  Result<Tensor> optional_numbers(TensorRole role, int64_t block = 0);

  // Tensors of the file that nobody asked for, in the order of the file.
  std::vector<std::string_view> unread() const;

 private:
  Result<Tensor> floats(const std::string& name, std::initializer_list<int64_t> dims);
  Result<const float*> scale_of(const std::string& stem, int64_t experts);
  Tensor keep(std::vector<float> values);

  const gguf::File& file_;
  ModelSizes sizes_;
  Arena& arena_;
  std::unordered_set<std::string> used_;
};

// ---- What the parts of a layer read. Empty where a model has no such tensor ----

// q holds H d rows, or 2 H d where the query is gated: of each head the query's rows, then the gate's.
struct AttentionWeights {
  Weight q, k, v, out;  // without v, values are what k projects to; without k, both are those of another layer
  Tensor q_bias, k_bias, v_bias, out_bias;
  Tensor q_norm, k_norm, v_norm;
  Tensor sinks;  // [H]
};

// A gated delta net.
struct DeltaWeights {
  Weight qkv, z, alpha, beta, out;
  Tensor conv, a, dt_bias, norm;
};

// A dense feed-forward.
struct DenseWeights {
  Weight gate, up, down;
  Tensor gate_bias, up_bias, down_bias;
};

struct ExpertWeights {
  Weight router, gate, up, down;
  Tensor router_bias, gate_bias, up_bias, down_bias;
  Tensor selection_bias;  // ExpertChoice::selection_bias
  Weight shared_gate, shared_up, shared_down;
  Tensor shared_router;
};

// A dense feed-forward beside experts. The dense one reads what LayerWeights::ffn_norm made of the residual stream.
struct ParallelWeights {
  DenseWeights dense;
  Tensor dense_out_norm;
  Tensor router_norm, experts_norm;  // of the residual stream: before the router, and before the experts
  ExpertWeights experts;
  Tensor experts_out_norm;
};

using FeedForwardWeights = std::variant<DenseWeights, ExpertWeights, ParallelWeights>;

// What a layer takes from its own embedding e of a token, behind the feed-forward: norm(out (f(gate x) * e)) of the
// residual stream x, with the feed-forward's activation f. [P, D], [D, P] and [D].
struct PerLayerWeights {
  Weight gate, out;
  Tensor norm;
};

struct LayerWeights {
  Tensor mixer_norm;  // before attention or delta net
  std::variant<AttentionWeights, DeltaWeights> mixer;
  Tensor mixer_out_norm;  // of what the mixer adds to the residual stream; empty: it is added as it is
  Tensor ffn_norm;        // before the feed-forward
  FeedForwardWeights ffn;
  Tensor ffn_out_norm;  // as mixer_out_norm
  PerLayerWeights per_layer;
  float out_scale = 1;  // of the residual stream behind all of these
};

// `row`: of the configuration's architecture. `block` counts from 0, and may be that of a multi-token-prediction block.
Result<AttentionWeights> load_attention(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block,
                                        Mixer mixer);
Result<DeltaWeights> load_delta(WeightLoader& w, const ModelConfig& c, int64_t block);
Result<FeedForwardWeights> load_feed_forward(WeightLoader& w, const Architecture& row, const ModelConfig& c,
                                             int64_t block);
Result<LayerWeights> load_layer(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block,
                                Mixer mixer);

// ---- Visiting ----

// Is shown everything of a model that operators read, in the order of use; empty ones too. Two kinds: WeightVisitor
// looks, WeightPlacer changes a copy of the weights to where a backend wants them (Decoder::placed).
template <bool kMayChange>
class BasicWeightVisitor {
 public:
  using W = std::conditional_t<kMayChange, Weight, const Weight>;
  using T = std::conditional_t<kMayChange, Tensor, const Tensor>;
  virtual ~BasicWeightVisitor() = default;

  virtual void matrix(W& w) = 0;          // to multiply by; `scale` belongs to it
  virtual void gate_up(W& gate, W& up) {  // two that SwiGLU puts together; of equal shapes
    matrix(gate);
    matrix(up);
  }
  // The matrices of experts; the shared ones may be empty.
  virtual void experts(W& gate, W& up, W& down, W& shared_gate, W& shared_up, W& shared_down) {
    gate_up(gate, up);
    matrix(down);
    gate_up(shared_gate, shared_up);
    matrix(shared_down);
  }
  virtual void table(W& w) = 0;   // whose rows are looked up
  virtual void vector(T& t) = 0;  // norms, biases, convolution taps, frequencies: float32; tokens of a head: i32
};
using WeightVisitor = BasicWeightVisitor<false>;
using WeightPlacer = BasicWeightVisitor<true>;

void visit(const LayerWeights& l, WeightVisitor& v);
void visit(LayerWeights& l, WeightPlacer& v);

}  // namespace quire
