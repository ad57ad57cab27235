#include "core/count.h"

#include <charconv>
#include <utility>

namespace quire {
namespace {

constexpr std::string_view kThousands = "kmgt", kBinary = "KMGT";

// What the letter multiplies by; 0: no such letter.
uint64_t unit_of(char letter) {
  for (const auto& [letters, base] : {std::pair{kThousands, 1000u}, {kBinary, 1024u}}) {
    uint64_t unit = 1;
    for (const char c : letters) {
      unit *= base;
      if (c == letter) return unit;
    }
  }
  return 0;
}

// ".6" of a unit of 1000 is 600; -1: not a whole number of ones.
int64_t parse_fraction(std::string_view digits, uint64_t unit) {
  while (digits.ends_with('0')) digits.remove_suffix(1);
  uint64_t value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9' || unit % 10 != 0) return -1;
    unit /= 10;
    value = 10 * value + static_cast<uint64_t>(c - '0');
  }
  return static_cast<int64_t>(value * unit);
}

template <class T>
CountError parse(std::string_view text, T& value) {
  T whole{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, whole);
  if (error == std::errc::invalid_argument) return CountError::kNotWhole;
  std::string_view rest(at, static_cast<size_t>(end - at));
  uint64_t unit = 1;
  if (!rest.empty()) {
    unit = unit_of(rest.back());
    if (unit == 0) return CountError::kNotWhole;
    rest.remove_suffix(1);
  }
  int64_t fraction = 0;
  if (!rest.empty()) {
    if (rest.front() != '.' || rest.size() < 2 || unit % 1000 != 0) return CountError::kNotWhole;
    fraction = parse_fraction(rest.substr(1), unit);
    if (fraction < 0) return CountError::kNotWhole;
    if (text.starts_with('-')) fraction = -fraction;
  }
  T product{}, sum{};
  if (error == std::errc::result_out_of_range || __builtin_mul_overflow(whole, unit, &product) ||
      __builtin_add_overflow(product, fraction, &sum))
    return CountError::kOutOfRange;
  value = sum;
  return CountError::kNone;
}

}  // namespace

CountError parse_count(std::string_view text, int64_t& value) {
  return parse(text, value);
}
CountError parse_count(std::string_view text, uint64_t& value) {
  return parse(text, value);
}

}  // namespace quire
