#include "convert/produce.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "gguf/metadata.h"
#include "quant/format.h"

namespace quire::convert {
namespace {

bool same_type(const Matrix& m, DType type) {
  if (m.coding != Coding::kPlain) return false;
  return (m.element == Element::kBF16 && type == DType::kBF16) ||
         (m.element == Element::kF16 && type == DType::kF16) ||
         (m.element == Element::kF32 && type == DType::kF32);
}

// The least magnitude that rounds to infinity.
double exclusive_limit(DType type) {
  if (type == DType::kF16) return 65520;
  return type == DType::kBF16 ? 0x1.ffp127 : 0x1.ffffffp127;
}

uint8_t code_at(const std::byte* codes, int64_t i) {
  const auto pair = static_cast<uint8_t>(codes[i / 2]);
  return i % 2 == 0 ? pair & 15 : pair >> 4;
}

// Codes 0..n-1 of a group at `in`, two columns a byte, become bytes that pair column j with column j + n/2.
void repack_codes(const std::byte* in, int64_t n, std::byte* out) {
  for (int64_t j = 0; j < n / 2; ++j)
    out[j] = static_cast<std::byte>(code_at(in, j) | (code_at(in, j + n / 2) << 4));
}

// The order of groups of `size` columns that an order of larger blocks amounts to.
std::vector<int64_t> group_order(const OutTensor& t, int64_t size) {
  std::vector<int64_t> order;
  const int64_t each = t.column_block / size;
  for (const int64_t block : t.column_order)
    for (int64_t i = 0; i < each; ++i) order.push_back(block * each + i);
  return order;
}

}  // namespace

float round_to_odd(double x) {
  auto f = static_cast<float>(x);
  if (static_cast<double>(f) == x || !std::isfinite(x)) return f;
  if (std::isinf(f)) return f;
  auto bits = std::bit_cast<uint32_t>(f);
  if (std::fabs(static_cast<double>(f)) > std::fabs(x)) --bits;  // towards zero
  return std::bit_cast<float>(bits | 1U);
}

void repack_nvfp4_row(const std::byte* codes, const std::byte* scales, int64_t cols,
                      std::span<const int64_t> groups, std::byte* out) {
  for (int64_t g = 0; g < cols / 16; ++g) {
    const int64_t from = groups.empty() ? g : groups[static_cast<size_t>(g)];
    std::byte* block = out + g / 4 * 36;
    block[g % 4] = scales[from] & std::byte{0x7f};
    repack_codes(codes + from * 8, 16, block + 4 + g % 4 * 8);
  }
}

void repack_mxfp4_row(const std::byte* codes, const std::byte* scales, int64_t cols,
                      std::span<const int64_t> groups, std::byte* out) {
  for (int64_t g = 0; g < cols / 32; ++g) {
    const int64_t from = groups.empty() ? g : groups[static_cast<size_t>(g)];
    out[g * 17] = scales[from];
    repack_codes(codes + from * 16, 32, out + g * 17 + 1);
  }
}

Producer::Producer(int threads) : pool_(threads), scratch_(static_cast<size_t>(threads)) {}

// Row `row` of `m` in the type and the column order of `t`. Returns what is wrong with its values, or null.
const char* Producer::make_row(const OutTensor& t, const Matrix& m, int64_t row, Scratch& s,
                               std::byte* out) const {
  const auto cols = static_cast<size_t>(m.cols), block = static_cast<size_t>(t.column_block);
  if (same_type(m, t.dtype) && t.change == ValueChange::kNone) {
    const std::byte* in = m.data + row * m.row_bytes();
    const size_t bytes = block * static_cast<size_t>(element_bytes(m.element));
    if (t.column_order.empty()) std::memcpy(out, in, static_cast<size_t>(m.row_bytes()));
    for (size_t i = 0; i < t.column_order.size(); ++i)
      std::memcpy(out + i * bytes, in + static_cast<size_t>(t.column_order[i]) * bytes, bytes);
    return nullptr;
  }
  s.row.resize(cols);
  decode_row(m, row, s.row.data());
  if (!t.column_order.empty()) {
    s.ordered.resize(cols);
    for (size_t i = 0; i < t.column_order.size(); ++i)
      std::copy_n(s.row.begin() + t.column_order[i] * t.column_block, block,
                  s.ordered.begin() + static_cast<int64_t>(i * block));
    s.row.swap(s.ordered);
  }
  const double limit = exclusive_limit(t.dtype);
  for (double& x : s.row) {
    if (t.change == ValueChange::kAddOne) x += 1;
    if (t.change == ValueChange::kNegExp) x = -std::exp(x);
    if (!std::isfinite(x)) return "a value that is not finite; the file is damaged, copy it again";
    if (std::fabs(x) >= limit)
      return "a value that is too large for the new type; choose --outtype f32 or bf16";
  }
  s.floats.resize(cols);
  for (size_t i = 0; i < cols; ++i)
    s.floats[i] = t.dtype == DType::kF32 ? static_cast<float>(s.row[i]) : round_to_odd(s.row[i]);
  quant::encode_row(t.dtype, s.floats.data(), m.cols, out);
  return nullptr;
}

Result<std::span<const std::byte>> Producer::run(const OutTensor& t) {
  if (t.parts.empty()) return std::as_bytes(std::span(t.values));
  const Matrix& first = t.parts.front();
  const auto size = static_cast<size_t>(t.bytes());
  if (t.parts.size() == 1 && same_type(first, t.dtype) && t.change == ValueChange::kNone &&
      t.row_order.empty() && t.column_order.empty())
    return std::span(first.data, size);

  buffer_.resize(size);
  const int64_t rows = first.rows, row_bytes = dtype_bytes(t.dtype, first.cols);
  const bool nvfp4 = t.dtype == DType::kNVFP4 && first.coding == Coding::kNvfp4;
  const bool mxfp4 = t.dtype == DType::kMXFP4 && first.coding == Coding::kMxfp4;
  const std::vector<int64_t> groups = nvfp4   ? group_order(t, 16)
                                      : mxfp4 ? group_order(t, 32)
                                              : std::vector<int64_t>();
  std::atomic<int64_t> bad{-1};
  std::atomic<const char*> problem{nullptr};
  pool_.parallel_for(
      rows * static_cast<int64_t>(t.parts.size()), 16, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
          const Matrix& m = t.parts[static_cast<size_t>(i / rows)];
          const int64_t row = t.row_order.empty() ? i % rows : t.row_order[static_cast<size_t>(i % rows)];
          std::byte* out = buffer_.data() + i * row_bytes;
          if (nvfp4)
            repack_nvfp4_row(m.data + row * m.row_bytes(), m.scales + row * (m.cols / 16), m.cols, groups,
                             out);
          else if (mxfp4)
            repack_mxfp4_row(m.data + row * m.row_bytes(), m.scales + row * (m.cols / 32), m.cols, groups,
                             out);
          else if (const char* wrong = make_row(t, m, row, scratch_[static_cast<size_t>(thread)], out)) {
            bad.store(i);
            problem.store(wrong);
          }
        }
      });
  if (bad.load() < 0) return std::span<const std::byte>(buffer_);
  return file_error("tensor {} holds {}",
                    gguf::printable(t.parts[static_cast<size_t>(bad.load() / rows)].name), problem.load());
}

}  // namespace quire::convert
