// Matrices of 4-bit integers in words of 32 bits, as GPTQ, AWQ and compressed-tensors (pack-quantized) lay them out.
// A weight is (code - zero point) * scale; codes and zero points are 0 to 15 as stored, and GPTQ's first version stores
// zero points less 1.
// Source: the file formats of the AutoGPTQ, AutoAWQ and compressed-tensors packages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "convert/safetensors.h"
#include "core/dtype.h"

namespace quire::convert {

// A table of 4-bit numbers, eight neighbours in a word: of a row or of a column of the table.
struct NibbleTable {
  const std::byte* words = nullptr;        // unaligned; null: no table
  int64_t row_stride = 0, col_stride = 0;  // in words; of what holds eight, from one eight to the next
  bool along_rows = false;                 // eight rows of a column share a word, not eight columns of a row
  bool interleaved = false;                // AWQ: the nibbles of a word are numbers 0 2 4 6 1 3 5 7

  // Numbers (row, 0) to (row, count - 1), of a table of whole words: a multiple of 8 where words are of rows.
  void read_row(int64_t row, int64_t count, uint8_t* out) const;
};

struct Int4 {
  NibbleTable codes;                  // [rows, cols]
  NibbleTable zeros;                  // [rows, groups]; none: 8
  int zero_offset = 0;                // added to each of them
  const std::byte* scales = nullptr;  // [rows, groups]
  Element scale_element = Element::kF16;
  int64_t scale_row_stride = 0, scale_col_stride = 0;  // in elements
  int64_t group = 0;                                   // columns that share zero point and scale
  const std::byte* group_of = nullptr;                 // i32 for each column, where groups are no runs of columns

  int64_t group_of_column(int64_t col) const;
  std::vector<uint8_t> zeros_of(int64_t row, int64_t groups) const;  // of each group, 0 to 16
  double scale(int64_t row, int64_t g) const;                        // finite or not
};

// Whether blocks of 32 columns with a scale in half precision hold all of it exactly: GGUF's Q4_0 where all zero points
// are 8, else Q5_0, whose codes are differences from -16 to 15.
enum class Int4Fit : uint8_t { kNone, kQ4_0, kQ5_0 };
Int4Fit find_fit(const Int4& m, int64_t rows, int64_t cols);

// One row in float64, in which products are exact.
void decode_int4_row(const Int4& m, int64_t row, int64_t cols, double* out);

// One row as `type`, kQ4_0 or kQ5_0, bits only moved. Blocks of 32 columns are taken in the order of `blocks` (empty:
// as they are).
void repack_int4_row(DType type, const Int4& m, int64_t row, int64_t cols, std::span<const int64_t> blocks,
                     std::byte* out);

}  // namespace quire::convert
