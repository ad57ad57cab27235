#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/result.h"

namespace quire::unicode {
namespace {

constexpr int kMaxDecomposition = 8;  // the longest canonical decomposition has 4 code points

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

uint8_t category_bits(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    default:
      return 0;
  }
}

// Letters, numbers and marks of Unicode 15.1 and 16.0, which utf8proc 2.8 (Unicode 15.0, that of Debian 12)
// does not know yet. Source: general categories of the Unicode Character Database 16.0. None of them
// decomposes in 15.0's tables, so NFC leaves them alone.
struct NewerRange {
  char32_t first, last;
  uint8_t bits;
};
constexpr NewerRange kNewer[] = {
    {0x0897, 0x0897, kMark},
    {0x1C89, 0x1C8A, kLetter},
    {0xA7CB, 0xA7CD, kLetter},
    {0xA7DA, 0xA7DC, kLetter},
    {0x105C0, 0x105F3, kLetter},
    {0x10D40, 0x10D49, kNumber},
    {0x10D4A, 0x10D65, kLetter},
    {0x10D69, 0x10D6D, kMark},
    {0x10D6F, 0x10D85, kLetter},
    {0x10EC2, 0x10EC4, kLetter},
    {0x10EFC, 0x10EFC, kMark},
    {0x11380, 0x11389, kLetter},
    {0x1138B, 0x1138B, kLetter},
    {0x1138E, 0x1138E, kLetter},
    {0x11390, 0x113B5, kLetter},
    {0x113B7, 0x113B7, kLetter},
    {0x113B8, 0x113C0, kMark},
    {0x113C2, 0x113C2, kMark},
    {0x113C5, 0x113C5, kMark},
    {0x113C7, 0x113CA, kMark},
    {0x113CC, 0x113D0, kMark},
    {0x113D1, 0x113D1, kLetter},
    {0x113D2, 0x113D2, kMark},
    {0x113D3, 0x113D3, kLetter},
    {0x113E1, 0x113E2, kMark},
    {0x116D0, 0x116E3, kNumber},
    {0x11BC0, 0x11BE0, kLetter},
    {0x11BF0, 0x11BF9, kNumber},
    {0x11F5A, 0x11F5A, kMark},
    {0x13460, 0x143FA, kLetter},
    {0x16100, 0x1611D, kLetter},
    {0x1611E, 0x1612F, kMark},
    {0x16130, 0x16139, kNumber},
    {0x16D40, 0x16D6C, kLetter},
    {0x16D70, 0x16D79, kNumber},
    {0x18CFF, 0x18CFF, kLetter},
    {0x1CCF0, 0x1CCF9, kNumber},
    {0x1E5D0, 0x1E5ED, kLetter},
    {0x1E5EE, 0x1E5EF, kMark},
    {0x1E5F0, 0x1E5F0, kLetter},
    {0x1E5F1, 0x1E5FA, kNumber},
    {0x2EBF0, 0x2EE5D, kLetter},
    // Which of these letters have a case.
    {0x1C89, 0x1C89, kUpper},
    {0x1C8A, 0x1C8A, kLower},
    {0xA7CB, 0xA7CC, kUpper},
    {0xA7CD, 0xA7CD, kLower},
    {0xA7DA, 0xA7DA, kUpper},
    {0xA7DB, 0xA7DB, kLower},
    {0xA7DC, 0xA7DC, kUpper},
    {0x10D50, 0x10D65, kUpper},
    {0x10D70, 0x10D85, kLower},
};

// Only what the library has no category for: one with newer tables knows better.
void add_newer(uint8_t* bits) {
  for (const NewerRange& r : kNewer)
    for (char32_t c = r.first; c <= r.last; ++c)
      if (utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_CN) bits[c] |= r.bits;
}

using Decomposition = std::array<utf8proc_int32_t, kMaxDecomposition>;

// The full canonical decomposition of one code point; returns its length.
int decompose(char32_t c, Decomposition& out) {
  int last_boundclass = 0;
  const auto n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), out.data(), kMaxDecomposition,
                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &last_boundclass);
  QUIRE_CHECK(n >= 1 && n <= kMaxDecomposition, "U+{:04X} decomposes to {} code points", uint32_t{c}, n);
  return static_cast<int>(n);
}

int compose(utf8proc_int32_t* code_points, std::size_t n) {
  return static_cast<int>(utf8proc_normalize_utf32(code_points, static_cast<utf8proc_ssize_t>(n),
                                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE)));
}

int combining_class(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

bool is_surrogate(char32_t c) {
  return c >= 0xD800 && c <= 0xDFFF;
}

}  // namespace

ClassTable::ClassTable() : storage_(kSize, '\0') {
  auto* bits = reinterpret_cast<uint8_t*>(storage_.data());
  bits_ = bits;
  for (char32_t c = 0; c < kSize; ++c) {
    if (is_surrogate(c)) continue;
    bits[c] |= category_bits(c);
    if (is_white_space(c)) bits[c] |= kSpace;
    const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (property->combining_class != 0) bits[c] |= kNfcActive;
    const bool hangul = c >= 0xAC00 && c <= 0xD7A3;
    if (!hangul && (property->decomp_type != 0 || property->decomp_seqindex == UINT16_MAX)) continue;
    Decomposition parts{};
    const int n = decompose(c, parts);
    // The second half of a composite may join with what stands before it. (In a composite of three parts the
    // first two are a composite themselves, so the last part is the second half.)
    if (n > 1) bits[parts[n - 1]] |= kNfcActive;
    if (compose(parts.data(), n) != 1 || parts[0] != static_cast<utf8proc_int32_t>(c)) bits[c] |= kNfcActive;
  }
  add_newer(bits);
}

const ClassTable& ClassTable::get() {
  static const ClassTable table;
  return table;
}

void append_code_points(std::string_view bytes, std::u32string& out) {
  out.reserve(out.size() + bytes.size());
  while (!bytes.empty()) {
    const Decoded d = decode(bytes);
    out.append(d.status == Utf8::kValid ? 1 : d.length, d.code_point);
    bytes.remove_prefix(d.length);
  }
}

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Decoded d = decode(bytes);
    if (d.status != Utf8::kValid) return false;
    bytes.remove_prefix(d.length);
  }
  return true;
}

std::string replace_invalid(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Decoded d = decode(bytes);
    if (d.status == Utf8::kValid) {
      out.append(bytes.substr(0, d.length));
    } else {
      append_utf8(kReplacement, out);
    }
    bytes.remove_prefix(d.length);
  }
  return out;
}

std::string replace_invalid_bytes(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Decoded d = decode(bytes);
    const bool valid = d.status == Utf8::kValid;
    valid ? void(out.append(bytes.substr(0, d.length))) : append_utf8(kReplacement, out);
    bytes.remove_prefix(valid ? d.length : 1);
  }
  return out;
}

std::size_t leading_space(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    const Decoded d = decode(text.substr(n));
    if (d.status != Utf8::kValid || !is_white_space(d.code_point)) break;
    n += d.length;
  }
  return n;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    std::size_t begin = text.size() - n - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    const std::string_view last = text.substr(begin, text.size() - n - begin);
    const Decoded d = decode(last);
    if (d.status != Utf8::kValid || d.length != last.size() || !is_white_space(d.code_point)) break;
    n += last.size();
  }
  return n;
}

namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

// Brings marks into canonical order: by combining class, equal ones as they stand. Long runs are counted rather than
// compared, so that the time for one of any length is linear.
void order_marks(CodePoints::iterator begin, CodePoints::iterator end, CodePoints& copy) {
  constexpr std::ptrdiff_t kFew = 32;
  const auto class_of = [](utf8proc_int32_t c) { return combining_class(static_cast<char32_t>(c)); };
  if (end - begin <= kFew) {
    std::stable_sort(begin, end, [&](auto a, auto b) { return class_of(a) < class_of(b); });
    return;
  }
  copy.assign(begin, end);
  std::array<std::size_t, 257> first{};  // of each class's marks, among the ordered ones
  for (const auto c : copy) ++first.at(static_cast<std::size_t>(class_of(c)) + 1);
  for (std::size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  for (const auto c : copy) begin[static_cast<std::ptrdiff_t>(first[static_cast<std::size_t>(class_of(c))]++)] = c;
}

struct NfcScratch {
  CodePoints segment, marks;
};

// Normalises one segment and appends it to `out`. utf8proc's own whole-string function is not used because it sorts
// marks by swapping neighbours: a megabyte of marks would take it hours.
void normalise_segment(std::u32string_view segment, NfcScratch& scratch, std::u32string& out) {
  CodePoints& all = scratch.segment;
  all.clear();
  Decomposition parts{};
  for (const char32_t c : segment) {
    const int n = decompose(c, parts);
    all.insert(all.end(), parts.begin(), parts.begin() + n);
  }
  const auto is_starter = [](utf8proc_int32_t c) { return combining_class(static_cast<char32_t>(c)) == 0; };
  for (auto run = all.begin(); run != all.end();) {
    if (is_starter(*run)) {
      ++run;
      continue;
    }
    const auto run_end = std::find_if(run, all.end(), is_starter);
    order_marks(run, run_end, scratch.marks);
    run = run_end;
  }
  const int n = compose(all.data(), all.size());
  out.append(all.begin(), all.begin() + n);
}

}  // namespace

void nfc(std::u32string& text) {
  const ClassTable& classes = ClassTable::get();
  const auto active = [&](char32_t c) { return (classes[c] & kNfcActive) != 0; };
  const auto first = std::find_if(text.begin(), text.end(), active);
  if (first == text.end()) return;  // nearly all text
  std::u32string out;
  out.reserve(text.size());
  NfcScratch scratch;
  // A segment is an inert code point with the active ones after it: nothing joins across its ends.
  std::size_t i = 0;
  while (i < text.size()) {
    std::size_t end = i + 1;
    while (end < text.size() && active(text[end])) ++end;
    if (end == i + 1 && !active(text[i])) {
      out.push_back(text[i]);
    } else {
      normalise_segment(std::u32string_view(text).substr(i, end - i), scratch, out);
    }
    i = end;
  }
  text = std::move(out);
}

}  // namespace quire::unicode
