// Which GGUF tensors become of which tensors of a model folder. The list is made from the configuration, not
// from what the model folder happens to hold: so what is missing, of another shape, or left over is known
// before anything is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "convert/hf_config.h"
#include "convert/matrix.h"
#include "core/dtype.h"

namespace quire::convert {

enum class ValueChange : uint8_t {
  kNone,
  kAddOne,  // norms that the model applies as 1 + w
  kNegExp,  // A_log -> -exp(A_log)
};

// A tensor to write: `parts` one behind the other (experts), each with its rows and columns put in order; or
// `values`.
struct OutTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> dims;  // in ne order
  std::vector<Matrix> parts;
  std::vector<int64_t> row_order;     // row i of a part is its row row_order[i]; empty: as they are
  std::vector<int64_t> column_order;  // the same for blocks of `column_block` columns
  int64_t column_block = 1;
  ValueChange change = ValueChange::kNone;
  std::vector<float> values;  // F32, where there are no parts

  int64_t elems() const;
  int64_t bytes() const { return dtype_bytes(dtype, elems()); }
};

struct Plan {
  std::vector<OutTensor> tensors;
  std::vector<std::string> notes;  // what was decoded or left out, a line each
  DType mostly = DType::kBF16;     // the type of most weights
};

struct PlanOptions {
  // Of all matrices. Without it, plain matrices keep their type, and NVFP4 and MXFP4 their codes.
  std::optional<DType> type;
  // Without a type: whether E4M3 codes stay what they are, beside their scales (DType::kFP8), in memory. Else FP8
  // becomes BF16, as it does where it does not fit: rows that are no multiple of 128, E5M2, embeddings.
  bool keep_fp8 = false;
};

// May set config.mtp_layers to 0. A tensor that nothing is made from, and that is none of those that may stay unread
// (convert/leftovers.h), is an error. Names and transforms: docs/convert.md.
Result<Plan> make_plan(Source& source, HfConfig& config, const PlanOptions& options);

}  // namespace quire::convert
