// From tensors of a file to weights of parts: names, shapes and types are checked here, once; the operators only
// assert. Names and shapes come from the table of tensors (arch/tensors.h).
#pragma once

#include <deque>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "arch/architecture.h"
#include "arch/shard.h"
#include "core/tensor.h"
#include "gguf/reader.h"
#include "ops/op.h"

namespace quire {

// The tensor with the factors of the matrix "<stem>.weight", or null: "<stem>.scale", which some writers call
// "<stem>.weight.scale".
const gguf::TensorInfo* find_scale(const gguf::File& file, std::string_view stem);

// Finds tensors by their role. Matrices stay where they are mapped; small vectors that are not float32 in the file
// are converted into memory of the loader's arena, which must live as long as the weights. An error names the tensor.
//
// Of a shard it gives what that rank has (arch/shard.h): rows that follow each other are a view of the mapping, others,
// and columns, are copied into the arena. Nothing else of the tensor is.
class WeightLoader {
 public:
  struct Arena {
    std::deque<std::vector<float>> vectors;
    std::deque<std::vector<int32_t>> numbers;
    std::deque<std::vector<std::byte>> matrices;
    int64_t bytes = 0;
  };
  WeightLoader(const gguf::File& file, const ModelSizes& whole, Arena& arena, const Shard& shard = {})
      : file_(file), shard_(shard), arena_(arena) {
    use(whole);
  }

  bool has(TensorRole role, int64_t block = 0) const { return file_.find_tensor(tensor_name(role, block)) != nullptr; }
  // What shapes are made of from here on, in the file: layers of one model may differ.
  void use(const ModelSizes& whole) {
    whole_ = whole;
    sizes_ = share_sizes(whole, shard_);
  }
  const ModelSizes& whole() const { return whole_; }
  const ModelSizes& sizes() const { return sizes_; }  // of what the rank has: that of its shapes
  const Shard& shard() const { return shard_; }
  // A matrix or table, or stacked matrices of experts, with the factors of "<stem>.scale" if present. `block`
  // matters for roles of blocks.
  Result<Weight> matrix(TensorRole role, int64_t block = 0);
  Result<Weight> optional_matrix(TensorRole role, int64_t block = 0);       // empty if the file has none
  Result<Weight> matrix_without_scale(TensorRole role, int64_t block = 0);  // "<stem>.scale" is something else
  // Of such a matrix the rows `order`, copied into the arena: where a file has them in another order than operators.
  Result<Weight> matrix_rows(TensorRole role, int64_t block, std::span<const int64_t> order);
  // What the rank has of a matrix that stands for the tensor of another role, too.
  Result<Weight> share(const Weight& whole, TensorRole role, int64_t block = 0);
  // Float32: [cols], or [rows, cols] where the role has rows.
  Result<Tensor> vector(TensorRole role, int64_t block = 0);
  Result<Tensor> optional_vector(TensorRole role, int64_t block = 0);
  // The same with every element times `factor`, in the arena.
  Result<Tensor> scaled_vector(TensorRole role, int64_t block, float factor);
  Tensor ones(int64_t n);
  // In the arena: what Weight::scale may point to.
  const float* factor(float value) { return keep({value}).as<float>(); }
  // i32 [n], whatever n is; empty if the file has none.
  Result<Tensor> optional_numbers(TensorRole role, int64_t block = 0);

  // Tensors of the file that nobody asked for, in the order of the file.
  std::vector<std::string_view> unread() const;

 private:
  Result<Weight> whole_matrix(TensorRole role, int64_t block);
  Weight copy_rows(const Weight& w, std::span<const ShareRange> rows);
  Result<Weight> copy_columns(const Weight& w, std::span<const ShareRange> columns, const std::string& name);
  std::byte* take(int64_t bytes);
  Tensor share(const Tensor& whole, TensorRole role);
  Result<Tensor> floats(const std::string& name, std::initializer_list<int64_t> dims);
  Result<const float*> scale_of(const std::string& stem, int64_t experts);
  Tensor keep(std::vector<float> values);

  const gguf::File& file_;
  Shard shard_;
  ModelSizes whole_, sizes_;
  Arena& arena_;
  std::unordered_set<std::string> used_;
};

}  // namespace quire
