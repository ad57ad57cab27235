#include "convert/int4.h"

#include <cmath>

#include "convert/bytes.h"
#include "core/float.h"
#include "core/result.h"

namespace quire::convert {
namespace {

constexpr int64_t kBlockColumns = 32;  // columns of a block of Q4_0 and Q5_0

bool is_half(double x) {
  return std::isfinite(x) && to_float(to_half(static_cast<float>(x))) == x;
}

}  // namespace

void NibbleTable::read_row(int64_t row, int64_t count, uint8_t* out) const {
  constexpr int kPlaceOf[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  if (along_rows) {
    const int place = static_cast<int>(row % 8), shift = 4 * (interleaved ? kPlaceOf[place] : place);
    const std::byte* const at = words + 4 * (row / 8 * row_stride);
    for (int64_t c = 0; c < count; ++c)
      out[c] = static_cast<uint8_t>(load_as<uint32_t>(at + 4 * c * col_stride) >> shift & 15U);
    return;
  }
  const std::byte* const at = words + 4 * (row * row_stride);
  for (int64_t c = 0; c < count; c += 8) {
    const auto word = load_as<uint32_t>(at + 4 * (c / 8 * col_stride));
    for (int i = 0; i < 8; ++i) out[c + i] = static_cast<uint8_t>(word >> (4 * i) & 15U);
  }
}

int64_t Int4::group_of_column(int64_t col) const {
  return group_of == nullptr ? col / group : load_as<int32_t>(group_of + 4 * col);
}

double Int4::scale(int64_t row, int64_t g) const {
  const int64_t at = row * scale_row_stride + g * scale_col_stride;
  switch (scale_element) {
    case Element::kF16:
      return to_float(load_as<half>(scales + 2 * at));
    case Element::kBF16:
      return to_float(load_as<bf16>(scales + 2 * at));
    default:
      return load_as<float>(scales + 4 * at);
  }
}

std::vector<uint8_t> Int4::zeros_of(int64_t row, int64_t groups) const {
  std::vector<uint8_t> out(static_cast<size_t>(groups), 8);
  if (zeros.words == nullptr) return out;
  zeros.read_row(row, groups, out.data());
  for (uint8_t& z : out) z = static_cast<uint8_t>(z + zero_offset);
  return out;
}

Int4Fit find_fit(const Int4& m, int64_t rows, int64_t cols) {
  if (m.group_of != nullptr || m.group % kBlockColumns != 0) return Int4Fit::kNone;
  Int4Fit fit = Int4Fit::kQ4_0;
  const int64_t groups = cols / m.group;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < groups; ++g)
      if (!is_half(m.scale(row, g))) return Int4Fit::kNone;
    if (m.zeros.words == nullptr) continue;
    for (const uint8_t zero : m.zeros_of(row, groups))
      if (zero != 8) fit = Int4Fit::kQ5_0;
  }
  return fit;
}

void decode_int4_row(const Int4& m, int64_t row, int64_t cols, double* out) {
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  m.codes.read_row(row, cols, codes.data());
  const std::vector<uint8_t> zeros = m.zeros_of(row, cols / m.group);
  for (int64_t c = 0; c < cols; ++c) {
    const int64_t g = m.group_of_column(c);
    out[c] = (codes[static_cast<size_t>(c)] - zeros[static_cast<size_t>(g)]) * m.scale(row, g);
  }
}

void repack_int4_row(DType type, const Int4& m, int64_t row, int64_t cols, std::span<const int64_t> blocks,
                     std::byte* out) {
  const bool wide = type == DType::kQ5_0;
  QUIRE_CHECK(wide || type == DType::kQ4_0, "4-bit integers as {}", dtype_name(type));
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  m.codes.read_row(row, cols, codes.data());
  const std::vector<uint8_t> zeros = m.zeros_of(row, cols / m.group);
  for (int64_t b = 0; b < cols / kBlockColumns; ++b) {
    const int64_t first = (blocks.empty() ? b : blocks[static_cast<size_t>(b)]) * kBlockColumns, g = first / m.group;
    const half d = to_half(static_cast<float>(m.scale(row, g)));
    std::memcpy(out, &d.bits, sizeof d.bits);
    out += sizeof d.bits;
    const int add = wide ? 16 - zeros[static_cast<size_t>(g)] : 0;
    uint8_t pairs[kBlockColumns / 2] = {};
    uint32_t fifth = 0;
    for (int i = 0; i < kBlockColumns; ++i) {
      const auto code = static_cast<uint32_t>(codes[static_cast<size_t>(first + i)] + add);
      pairs[i % 16] = static_cast<uint8_t>(pairs[i % 16] | (code & 15U) << (i < 16 ? 0 : 4));
      fifth |= code >> 4 << i;
    }
    if (wide) {
      std::memcpy(out, &fifth, sizeof fifth);
      out += sizeof fifth;
    }
    std::memcpy(out, pairs, sizeof pairs);
    out += sizeof pairs;
  }
}

}  // namespace quire::convert
