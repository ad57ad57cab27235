// From tensors of a file to weights of a layer: names, shapes and types are checked here, once; the operators
// only assert.
#pragma once

#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/tensor.h"
#include "gguf/reader.h"
#include "model/config.h"
#include "ops/op.h"

namespace quire {

// Finds tensors by name. Matrices stay where they are mapped; small vectors that are not float32 in the file
// are converted into memory of the loader's arena, which must live as long as the weights.
class WeightLoader {
 public:
  struct Arena {
    std::deque<std::vector<float>> vectors;
    int64_t bytes = 0;
  };
  WeightLoader(const gguf::File& file, Arena& arena) : file_(file), arena_(arena) {}

  // `experts` stacked matrices of [rows, cols] (experts 1: a plain matrix), with the factor of "<stem>.scale"
  // if present.
  Result<Weight> matrix(const std::string& stem, int64_t rows, int64_t cols, int64_t experts = 1);
  Result<Weight> optional_matrix(const std::string& stem, int64_t rows, int64_t cols, int64_t experts = 1);
  // A float32 vector of n elements; an empty Tensor when optional and missing.
  Result<Tensor> vector(const std::string& name, int64_t n);
  Result<Tensor> optional_vector(const std::string& name, int64_t n);
  // A float32 matrix [rows, cols] (convolution taps).
  Result<Tensor> table(const std::string& name, int64_t rows, int64_t cols);

  // Tensors of the file that nobody asked for.
  std::vector<std::string> unused() const;

 private:
  Result<Tensor> floats(const std::string& name, std::initializer_list<int64_t> dims);
  Result<const float*> scale_of(const std::string& stem, int64_t experts);

  const gguf::File& file_;
  Arena& arena_;
  std::unordered_set<std::string> used_;
};

// A full-attention block's mixer. q holds 2 H d rows (query and gate per head) in hybrid models.
struct AttentionWeights {
  Weight q, k, v, out;
  Tensor q_bias, k_bias, v_bias, out_bias;
  Tensor q_norm, k_norm;
};

// A gated-delta-net block's mixer.
struct DeltaWeights {
  Weight qkv, z, alpha, beta, out;
  Tensor conv, a, dt_bias, norm;
};

// The feed-forward part: dense or experts.
struct FfnWeights {
  Weight gate, up, down;
  Tensor gate_bias, up_bias, down_bias;
  Weight router;  // empty: dense
  Weight shared_gate, shared_up, shared_down;
  Tensor shared_router;
};

// Is shown everything of a model that operators read, in the order of use, to put it where a backend wants it: each may
// be changed in place. Empty ones are shown too.
class WeightVisitor {
 public:
  virtual ~WeightVisitor() = default;
  virtual void matrix(Weight& w) = 0;               // to multiply by; `scale` belongs to it
  virtual void gate_up(Weight& gate, Weight& up) {  // two that SwiGLU puts together; of equal shapes
    matrix(gate);
    matrix(up);
  }
  // A block of experts; the shared ones may be empty.
  virtual void experts(Weight& gate, Weight& up, Weight& down, Weight& shared_gate, Weight& shared_up,
                       Weight& shared_down) {
    gate_up(gate, up);
    matrix(down);
    gate_up(shared_gate, shared_up);
    matrix(shared_down);
  }
  virtual void table(Weight& w) = 0;   // whose rows are looked up
  virtual void vector(Tensor& t) = 0;  // norms, biases, convolution taps, frequencies: float32
};
void visit(AttentionWeights& w, WeightVisitor& v);
void visit(DeltaWeights& w, WeightVisitor& v);
void visit(FfnWeights& w, WeightVisitor& v);

// `prefix` is "blk.N.".
Result<AttentionWeights> load_attention(WeightLoader& w, const ModelConfig& c, const std::string& prefix);
Result<DeltaWeights> load_delta(WeightLoader& w, const ModelConfig& c, const std::string& prefix);
Result<FfnWeights> load_ffn(WeightLoader& w, const ModelConfig& c, const std::string& prefix);

}  // namespace quire
