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
  return (m.element == Element::kBF16 && type == DType::kBF16) || (m.element == Element::kF16 && type == DType::kF16) ||
         (m.element == Element::kF32 && type == DType::kF32);
}

// Whether the exponent of one of n elements of a plain type has all its bits: NaN or infinity.
template <class T>
bool any_full_exponent(const std::byte* p, int64_t n, T mask) {
  bool found = false;  // no early exit: the loop is of vectors, and nearly all tensors are good
  for (int64_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, p + i * static_cast<int64_t>(sizeof x), sizeof x);
    found |= (x & mask) == mask;
  }
  return found;
}
bool all_finite(Element e, const std::byte* p, int64_t n) {
  if (e == Element::kBF16) return !any_full_exponent<uint16_t>(p, n, 0x7f80);
  if (e == Element::kF16) return !any_full_exponent<uint16_t>(p, n, 0x7c00);
  return !any_full_exponent<uint32_t>(p, n, 0x7f800000);
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
  for (int64_t j = 0; j < n / 2; ++j) out[j] = static_cast<std::byte>(code_at(in, j) | (code_at(in, j + n / 2) << 4));
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

void repack_nvfp4_row(const std::byte* codes, const std::byte* scales, int64_t cols, std::span<const int64_t> groups,
                      std::byte* out) {
  for (int64_t g = 0; g < cols / 16; ++g) {
    const int64_t from = groups.empty() ? g : groups[static_cast<size_t>(g)];
    std::byte* block = out + g / 4 * 36;
    block[g % 4] = scales[from] & std::byte{0x7f};
    repack_codes(codes + from * 8, 16, block + 4 + g % 4 * 8);
  }
}

void repack_mxfp4_row(const std::byte* codes, const std::byte* scales, int64_t cols, std::span<const int64_t> groups,
                      std::byte* out) {
  for (int64_t g = 0; g < cols / 32; ++g) {
    const int64_t from = groups.empty() ? g : groups[static_cast<size_t>(g)];
    out[g * 17] = scales[from];
    repack_codes(codes + from * 16, 32, out + g * 17 + 1);
  }
}

Producer::Producer(int threads) : pool_(threads), scratch_(static_cast<size_t>(threads)) {}

// Row `row` of `m` in the type and the column order of `t`.
Producer::Row Producer::make_row(const OutTensor& t, const Matrix& m, int64_t row, Scratch& s, std::byte* out) const {
  const auto cols = static_cast<size_t>(m.cols), block = static_cast<size_t>(t.column_block);
  if (same_type(m, t.dtype) && t.change == ValueChange::kNone) {
    const std::byte* in = m.data + row * m.row_bytes();
    const size_t bytes = block * static_cast<size_t>(element_bytes(m.element));
    if (t.column_order.empty()) std::memcpy(out, in, static_cast<size_t>(m.row_bytes()));
    for (size_t i = 0; i < t.column_order.size(); ++i)
      std::memcpy(out + i * bytes, in + static_cast<size_t>(t.column_order[i]) * bytes, bytes);
    return all_finite(m.element, in, m.cols) ? Row::kGood : Row::kNotFinite;
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
    if (!std::isfinite(x)) return Row::kNotFinite;
    if (std::fabs(x) >= limit) return Row::kTooLarge;
  }
  s.floats.resize(cols);
  for (size_t i = 0; i < cols; ++i)
    s.floats[i] = t.dtype == DType::kF32 ? static_cast<float>(s.row[i]) : round_to_odd(s.row[i]);
  quant::encode_row(t.dtype, s.floats.data(), m.cols, out);
  return Row::kGood;
}

Result<std::span<const std::byte>> Producer::run(const OutTensor& t, std::set<std::string>& not_finite) {
  if (t.parts.empty()) return std::as_bytes(std::span(t.values));
  const Matrix& first = t.parts.front();
  const auto size = static_cast<size_t>(t.bytes());
  const bool as_it_is = t.parts.size() == 1 && same_type(first, t.dtype) && t.change == ValueChange::kNone &&
                        t.row_order.empty() && t.column_order.empty();
  if (!as_it_is) buffer_.resize(size);
  // An order may leave rows out.
  const int64_t rows = t.row_order.empty() ? first.rows : std::ssize(t.row_order);
  const int64_t row_bytes = dtype_bytes(t.dtype, first.cols);
  const bool nvfp4 = t.dtype == DType::kNVFP4 && first.coding == Coding::kNvfp4;
  const bool mxfp4 = t.dtype == DType::kMXFP4 && first.coding == Coding::kMxfp4;
  const std::vector<int64_t> groups = nvfp4 ? group_order(t, 16) : mxfp4 ? group_order(t, 32) : std::vector<int64_t>();
  // What is wrong with each part, as one of its bad rows says.
  std::vector<std::atomic<Row>> wrong(t.parts.size());
  const auto make = [&](int64_t i, int thread) {
    const Matrix& m = t.parts[static_cast<size_t>(i / rows)];
    const int64_t row = t.row_order.empty() ? i % rows : t.row_order[static_cast<size_t>(i % rows)];
    const std::byte* in = m.data + row * m.row_bytes();
    if (as_it_is) return all_finite(m.element, in, m.cols) ? Row::kGood : Row::kNotFinite;
    std::byte* out = buffer_.data() + i * row_bytes;
    if (!nvfp4 && !mxfp4) return make_row(t, m, row, scratch_[static_cast<size_t>(thread)], out);
    const std::byte* scales = m.scales + row * (m.cols / (nvfp4 ? 16 : 32));
    (nvfp4 ? repack_nvfp4_row : repack_mxfp4_row)(in, scales, m.cols, groups, out);
    return Row::kGood;  // scales that are no numbers were refused by the plan
  };
  pool_.parallel_for(rows * static_cast<int64_t>(t.parts.size()), 16, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i)
      if (const Row row = make(i, thread); row != Row::kGood) wrong[static_cast<size_t>(i / rows)].store(row);
  });
  for (size_t i = 0; i < wrong.size(); ++i) {
    const Row row = wrong[i].load();
    if (row == Row::kTooLarge)
      return file_error("tensor {} holds a value that is too large for the new type; choose --outtype f32 or bf16",
                        gguf::printable(t.parts[i].name));
    if (row == Row::kNotFinite) not_finite.insert(t.parts[i].name);
  }
  return as_it_is ? std::span(first.data, size) : std::span<const std::byte>(buffer_);
}

}  // namespace quire::convert
