#include "convert/type_choice.h"

#include <algorithm>

namespace quire::convert {
namespace {

// Whether the codes fit DType::kFP8: a scale for each 128 columns, or for more, that float32 holds.
bool fits_fp8(const Matrix& m) {
  return m.element == Element::kF8E4M3 && m.cols % kFp8Columns == 0 && m.block_cols % kFp8Columns == 0 &&
         m.scale_element != Element::kF64;
}

// What holds 4-bit integers of all of an operator's matrices exactly, if anything does.
std::optional<DType> int4_type(const std::vector<Matrix>& parts) {
  DType type = DType::kQ4_0;
  for (const Matrix& m : parts) {
    if (m.coding != Coding::kInt4 || m.int4_fit == Int4Fit::kNone) return std::nullopt;
    if (m.int4_fit == Int4Fit::kQ5_0) type = DType::kQ5_0;
  }
  return type;
}

DType plain_dtype(Element e) {
  switch (e) {
    case Element::kBF16:
      return DType::kBF16;
    case Element::kF16:
      return DType::kF16;
    default:
      return DType::kF32;
  }
}

}  // namespace

DType TypeChoice::choose(const std::vector<Matrix>& parts, bool reordered, int64_t column_block) {
  if (given) return *given;
  const Matrix& first = parts.front();
  const bool alike = std::all_of(parts.begin(), parts.end(), [&](const Matrix& m) {
    return m.coding == first.coding && m.element == first.element;
  });
  switch (first.coding) {
    case Coding::kPlain:
      if (alike) return plain_dtype(first.element);
      break;
    case Coding::kFp8:
      if (keep_fp8 && alike && std::all_of(parts.begin(), parts.end(), [](const Matrix& m) { return fits_fp8(m); }) &&
          (!reordered || column_block % kFp8Columns == 0))
        return DType::kFP8;
      ++decoded["FP8"];
      return DType::kBF16;
    case Coding::kNvfp4:
      if (alike && first.cols % 64 == 0 && (!reordered || column_block % 16 == 0)) return DType::kNVFP4;
      break;
    case Coding::kMxfp4:
      if (alike && (!reordered || column_block % 32 == 0)) return DType::kMXFP4;
      break;
    case Coding::kInt4:
      if (!reordered || column_block % 32 == 0)
        if (const std::optional<DType> type = int4_type(parts)) return *type;
      ++decoded["4-bit integer (whose groups or scales GGUF's blocks cannot have)"];
      return DType::kBF16;
  }
  ++decoded[alike ? "4-bit (rows that make no whole blocks of GGUF)" : "mixed"];
  return DType::kBF16;
}

}  // namespace quire::convert
