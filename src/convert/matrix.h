// A matrix of a model folder as it is stored: plain numbers, or codes with scales in one of several layouts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "convert/int4.h"
#include "convert/safetensors.h"
#include "core/result.h"

namespace quire::convert {

enum class Coding {
  kPlain,  // BF16, F16, F32, F64
  kFp8,    // F8_E4M3 or F8_E5M2, times a scale of the tensor, of the row, or of a block of rows and columns
  kNvfp4,  // E2M1 in pairs, an E4M3 scale per 16 columns, a float32 scale of the tensor
  kMxfp4,  // E2M1 in pairs, a power of two per 32 columns
  kInt4,   // integers less a zero point, times a scale per group of columns
};

inline constexpr int64_t kFp8Columns = 128;  // with a scale each in DType::kFP8

// A view into a model folder. Row r has `cols` elements; its bytes begin at data + r * row_bytes().
struct Matrix {
  std::string name;  // of its tensor, for messages
  Coding coding = Coding::kPlain;
  Element element = Element::kF32;  // kPlain and kFp8
  int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;
  // Not 0 (kPlain and kFp8): the model folder has the transpose. Elements of a row are so many elements apart, and rows
  // begin side by side.
  int64_t column_stride = 0;

  // kFp8: scale (r, c) is element (first_row + r) / block_rows * scale_cols + c / block_cols of `scales`; of a
  // transpose element c / block_cols * scale_cols + (first_row + r) / block_rows.
  // kNvfp4, kMxfp4: one byte per 16 or 32 columns, row after row.
  const std::byte* scales = nullptr;
  Element scale_element = Element::kF32;
  int64_t scale_cols = 1, block_rows = 1, block_cols = 1, first_row = 0;
  Int4 int4;  // kInt4; `data` and `scales` are not used then
  Int4Fit int4_fit = Int4Fit::kNone;
  float tensor_scale = 1;            // kNvfp4
  std::optional<float> input_scale;  // kNvfp4: calibrated for static activations; kept, not used

  int64_t row_bytes() const;                         // from one row to the next
  Matrix slice(int64_t begin, int64_t count) const;  // rows [begin, begin + count)
};

// Of kFp8: that of element (r, c), finite or not.
double fp8_scale(const Matrix& m, int64_t r, int64_t c);

// Row r in float64, in which every product of a code with its scales is exact (at most 6 + 24 significant
// bits).
void decode_row(const Matrix& m, int64_t r, double* out);

// Whether two matrices of one shape decode to the same numbers, whatever holds them.
bool same_values(const Matrix& a, const Matrix& b);

// Finds matrices of a model folder by their canonical names ("model.layers.0...", whatever wrapper the
// model folder has around the text model), and remembers which tensors were asked for.
class Source {
 public:
  // `gptq_v2`: zero points of GPTQ are stored as they are, not less 1.
  explicit Source(const FolderWeights& weights, bool gptq_v2 = false);

  const FolderWeights& weights() const { return weights_; }
  // Two tensors of one canonical name are an error.
  Status check() const;

  bool has(std::string_view name) const { return find(name) != nullptr; }
  bool has_shape(std::string_view name, std::span<const int64_t> shape) const;
  bool has_any(std::string_view prefix) const;  // a tensor whose canonical name begins so

  // The linear map "<stem>.weight" in any coding ("<stem>.weight_packed", "<stem>.qweight"), of exactly this shape; for
  // kPlain, leading and inner dimensions of the stored shape are merged into `rows`.
  Result<Matrix> linear(std::string_view stem, int64_t rows, int64_t cols);
  bool has_linear(std::string_view stem) const;
  // The matrices of stacked experts as gpt-oss has them: MXFP4 in "<stem>_blocks" and "<stem>_scales", or plain numbers
  // in "<stem>", transposed.
  Result<std::vector<Matrix>> oai_experts(std::string_view stem, int64_t experts, int64_t rows, int64_t cols);
  // The matrices of stacked experts out of plain numbers or FP8 [experts, cols, rows].
  Result<std::vector<Matrix>> transposed_experts(std::string_view name, int64_t experts, int64_t rows, int64_t cols);
  // A plain or FP8 tensor by its full name ("model.layers.0.mlp.experts.down_proj", "...A_log").
  Result<Matrix> tensor(std::string_view name, int64_t rows, int64_t cols);

  // Takes every tensor for which `wanted(canonical name, tensor)` holds off the list of unused ones; returns how many.
  template <class Wanted>
  int64_t drop(Wanted&& wanted) {
    int64_t n = 0;
    for (const auto& [name, t] : by_name_)
      if (!used_.contains(t) && wanted(std::string_view(name), *t)) {
        used_.insert(t);
        ++n;
      }
    return n;
  }
  // Names, as in the files, of tensors that nobody asked for.
  std::vector<std::string> unused() const;

 private:
  const SourceTensor* find(std::string_view canonical) const;
  const SourceTensor* use(std::string_view canonical);
  Error where(const SourceTensor& t, Error e) const;
  Result<Matrix> plain(const SourceTensor& t, int64_t rows, int64_t cols);
  Status add_fp8_scales(std::string_view stem, std::string_view separator, const SourceTensor& t, Matrix& m);
  Result<const SourceTensor*> transposed_scales(const SourceTensor& t, std::string_view name, int64_t experts,
                                                Matrix& m);
  Result<Matrix> fp4(std::string_view stem, const SourceTensor& codes, int64_t rows, int64_t cols);
  Status check_fp4_scales(const SourceTensor& scales, Coding coding) const;
  // int4_source.cpp
  Result<Matrix> packed_int4(std::string_view stem, const SourceTensor& codes, int64_t rows, int64_t cols);
  Result<Matrix> gptq_or_awq(std::string_view stem, const SourceTensor& codes, int64_t rows, int64_t cols);
  Result<const SourceTensor*> table(std::string_view name, std::initializer_list<Element> elements,
                                    std::vector<int64_t> shape);
  Status add_scales(std::string_view name, std::vector<int64_t> shape, Int4& m);
  Status add_groups(std::string_view name, int64_t cols, int64_t groups, Int4& m);
  Result<float> scalar(std::string_view name);

  const FolderWeights& weights_;
  bool gptq_v2_;
  std::vector<std::pair<std::string, const SourceTensor*>> by_name_;  // canonical, sorted
  std::unordered_set<const SourceTensor*> used_;
};

}  // namespace quire::convert
