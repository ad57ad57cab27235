// Importance matrices: how large the inputs of each weight matrix are, column by column, over some text. An
// encoder that knows them spends its error where it is multiplied by little.
//
// The file is a GGUF file with general.type = "imatrix", the layout that llama.cpp reads and writes too:
//   imatrix.datasets     strings  names of the texts
//   imatrix.chunk_count  u32      windows of text that were run
//   imatrix.chunk_size   u32      tokens of a window
// and for each weight matrix NAME ("blk.0.ffn_up.weight"), which may be M stacked ones (experts):
//   NAME.in_sum2  [K, M] f32  per input column, the sum of x^2 over the tokens that reached the matrix
//   NAME.counts   [1, M] f32  how many tokens that were
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "gguf/reader.h"

namespace quire::quant {

// Where the numbers come from. Informative only; what a file does not say is empty or 0.
struct ImportanceOrigin {
  std::vector<std::string> datasets;
  uint32_t chunk_count = 0;
  uint32_t chunk_size = 0;
};

// An importance file, read and checked. Immutable: threads may share it.
class Importance {
 public:
  struct Entry {
    std::string_view tensor;  // the weight's name
    int64_t columns = 0;
    int64_t matrices = 1;
    std::span<const float> sum2;    // [matrices, columns], finite, at least 0
    std::span<const float> counts;  // [matrices], 0 or at least 1
  };

  // Errors (Fault::kModelFile): not an importance file, metadata or tensors of other types or shapes than
  // above, one tensor of a pair without the other, values that no sum of squares or count can be.
  static Result<Importance> open(const std::string& path);
  // The same from memory, which must start on an 8-byte boundary and outlive the result.
  static Result<Importance> parse(std::span<const std::byte> bytes);

  // Mean of x^2 for each of the `columns` inputs of matrix number `matrix` of a tensor. Empty if nothing is
  // known about it: no such entry, an entry of another shape (see check), or no token reached that matrix.
  std::span<const float> find(std::string_view tensor, int64_t matrix, int64_t columns) const;

  // An error if there is an entry for the tensor but of another shape: the file belongs to another model. To
  // be asked once per tensor, so that such a file is refused and not silently ignored.
  Status check(std::string_view tensor, int64_t columns, int64_t matrices) const;

  std::span<const Entry> entries() const { return entries_; }  // in file order
  const ImportanceOrigin& origin() const { return origin_; }

 private:
  static Result<Importance> read(gguf::File file);
  explicit Importance(gguf::File file) : file_(std::move(file)) {}
  const Entry* entry(std::string_view tensor) const;

  gguf::File file_;  // entries point into it
  ImportanceOrigin origin_;
  std::vector<Entry> entries_;
  gguf::NameIndex by_tensor_;
  std::vector<float> means_;    // of all entries, one after the other
  std::vector<size_t> begins_;  // where each entry's means begin
};

// Sums of squares being added up, in float64, for writing.
class ImportanceTotals {
 public:
  struct Total {
    int64_t columns = 0;
    int64_t matrices = 1;
    std::vector<double> sum2;    // [matrices, columns]
    std::vector<double> counts;  // [matrices]
  };

  // Adds to what is known about a tensor: sum2 [matrices, columns], counts [matrices]. An error if that was
  // of another shape.
  Status add(std::string_view tensor, int64_t columns, std::span<const double> sum2, std::span<const double> counts);
  // Adds a whole file, its windows and the names of its texts.
  Status add(const Importance& file);
  // A text of so many windows. The size of a window is that of the first text.
  Status add_text(std::string_view dataset, uint32_t chunks, uint32_t chunk_size);

  // Writes all tensors in the order of their names. The file appears only when it is complete. An error if a
  // sum is not finite (the model computes NaN or infinities) or too large for float32.
  Status write(const std::string& path) const;

  const std::map<std::string, Total, std::less<>>& tensors() const { return tensors_; }
  const ImportanceOrigin& origin() const { return origin_; }

 private:
  std::map<std::string, Total, std::less<>> tensors_;
  ImportanceOrigin origin_;
};

}  // namespace quire::quant
