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

constexpr size_t kShownNames = 8;  // of tensors in a message

bool same_type(const Matrix& m, DType type) {
  if (m.coding != Coding::kPlain || m.column_stride > 0) return false;
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

// Row `row` of `m` as DType::kFP8, blocks of 128 columns in the order of `blocks` (empty: as they are). False: a code
// is no number, or a scale is none, or so large that products with it are infinite.
bool make_fp8_row(const Matrix& m, int64_t row, std::span<const int64_t> blocks, std::byte* out) {
  constexpr double kMostScale = 0x1p118;  // times the largest code, 448, still finite
  std::vector<std::byte> gathered;
  const std::byte* codes = m.data + row * m.row_bytes();
  if (m.column_stride > 0) {
    for (int64_t c = 0; c < m.cols; ++c) gathered.push_back(codes[c * m.column_stride]);
    codes = gathered.data();
  }
  bool good = true;
  for (int64_t b = 0; b < m.cols / kFp8Columns; ++b) {
    const int64_t from = (blocks.empty() ? b : blocks[static_cast<size_t>(b)]) * kFp8Columns;
    const double exact = fp8_scale(m, row, from);
    const auto scale = static_cast<float>(exact);
    good &= std::fabs(exact) <= kMostScale;
    std::memcpy(out, &scale, sizeof scale);
    std::memcpy(out + sizeof scale, codes + from, kFp8Columns);
    bool not_number = false;
    for (int64_t c = from; c < from + kFp8Columns; ++c) not_number |= (codes[c] & std::byte{0x7f}) == std::byte{0x7f};
    good &= !not_number;
    out += sizeof scale + kFp8Columns;
  }
  return good;
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

Status refuse_not_finite(const std::set<std::string>& tensors) {
  if (tensors.empty()) return {};
  std::string names;
  size_t shown = 0;
  for (const std::string& name : tensors) {
    if (shown++ == kShownNames) break;
    names.append(names.empty() ? "" : ", ").append(gguf::printable(name));
  }
  return file_error("{} {} NaN or infinity: {}{}; if the original has none, copy the folder again", tensors.size(),
                    tensors.size() == 1 ? "tensor holds" : "tensors hold", names,
                    tensors.size() > kShownNames ? ", ..." : "");
}

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

const std::byte* payload_in_place(const OutTensor& t) {
  if (t.parts.empty()) return std::as_bytes(std::span(t.values)).data();
  const bool as_it_is = t.parts.size() == 1 && same_type(t.parts.front(), t.dtype) && t.change == ValueChange::kNone &&
                        t.row_order.empty() && t.column_order.empty();
  return as_it_is ? t.parts.front().data : nullptr;
}

// An order may leave rows out.
int64_t rows_of_a_part(const OutTensor& t) {
  return t.row_order.empty() ? t.parts.front().rows : std::ssize(t.row_order);
}

template <class MakeRow>
Status Producer::all_rows(const OutTensor& t, std::set<std::string>& not_finite, MakeRow&& make_row) {
  const int64_t rows = rows_of_a_part(t);
  // What is wrong with each part, as one of its bad rows says.
  std::vector<std::atomic<Row>> wrong(t.parts.size());
  pool_.parallel_for(rows * static_cast<int64_t>(t.parts.size()), 16, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      const auto part = static_cast<size_t>(i / rows);
      if (const Row row = make_row(t.parts[part], i, thread); row != Row::kGood) wrong[part].store(row);
    }
  });
  for (size_t i = 0; i < wrong.size(); ++i) {
    const Row row = wrong[i].load();
    if (row == Row::kTooLarge)
      return file_error("tensor {} holds a value that is too large for the new type; choose --outtype f32 or bf16",
                        gguf::printable(t.parts[i].name));
    if (row == Row::kNotFinite) not_finite.insert(t.parts[i].name);
  }
  return {};
}

Status Producer::make(const OutTensor& t, std::byte* to, std::set<std::string>& not_finite) {
  if (t.parts.empty()) {
    std::memcpy(to, t.values.data(), static_cast<size_t>(t.bytes()));
    return {};
  }
  const Matrix& first = t.parts.front();
  const int64_t rows = rows_of_a_part(t), row_bytes = dtype_bytes(t.dtype, first.cols);
  const bool nvfp4 = t.dtype == DType::kNVFP4 && first.coding == Coding::kNvfp4;
  const bool mxfp4 = t.dtype == DType::kMXFP4 && first.coding == Coding::kMxfp4;
  const bool fp8 = t.dtype == DType::kFP8;
  const bool int4 = first.coding == Coding::kInt4 && (t.dtype == DType::kQ4_0 || t.dtype == DType::kQ5_0);
  const int64_t group = nvfp4 ? 16 : mxfp4 || int4 ? 32 : kFp8Columns;
  const auto groups = nvfp4 || mxfp4 || fp8 || int4 ? group_order(t, group) : std::vector<int64_t>();
  return all_rows(t, not_finite, [&](const Matrix& m, int64_t i, int thread) {
    const int64_t row = t.row_order.empty() ? i % rows : t.row_order[static_cast<size_t>(i % rows)];
    std::byte* const out = to + i * row_bytes;
    if (fp8) return make_fp8_row(m, row, groups, out) ? Row::kGood : Row::kNotFinite;
    if (int4) {
      repack_int4_row(t.dtype, m.int4, m.first_row + row, m.cols, groups, out);
      return Row::kGood;  // as for their scales
    }
    if (!nvfp4 && !mxfp4) return make_row(t, m, row, scratch_[static_cast<size_t>(thread)], out);
    const std::byte* scales = m.scales + row * (m.cols / group);
    (nvfp4 ? repack_nvfp4_row : repack_mxfp4_row)(m.data + row * m.row_bytes(), scales, m.cols, groups, out);
    return Row::kGood;  // scales that are no numbers were refused by the plan
  });
}

Result<std::span<const std::byte>> Producer::run(const OutTensor& t, std::set<std::string>& not_finite) {
  const auto size = static_cast<size_t>(t.bytes());
  if (const std::byte* const there = payload_in_place(t)) {
    if (!t.parts.empty())
      QUIRE_CHECKED(all_rows(t, not_finite, [](const Matrix& m, int64_t row, int) {
        return all_finite(m.element, m.data + row * m.row_bytes(), m.cols) ? Row::kGood : Row::kNotFinite;
      }));
    return std::span(there, size);
  }
  buffer_.resize(size);
  QUIRE_CHECKED(make(t, buffer_.data(), not_finite));
  return std::span<const std::byte>(buffer_);
}

}  // namespace quire::convert
