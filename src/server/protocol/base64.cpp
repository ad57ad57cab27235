#include "server/protocol/base64.h"

#include <algorithm>
#include <array>

namespace quire::server {
namespace {

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kSpace = 64, kPadding = 65, kNone = 66;

constexpr std::array<uint8_t, 256> value_table() {
  std::array<uint8_t, 256> values{};
  values.fill(kNone);
  for (size_t i = 0; i < kDigits.size(); ++i) values[static_cast<unsigned char>(kDigits[i])] = static_cast<uint8_t>(i);
  values['-'] = 62;
  values['_'] = 63;
  values['='] = kPadding;
  for (const char c : {' ', '\t', '\r', '\n'}) values[static_cast<unsigned char>(c)] = kSpace;
  return values;
}
constexpr std::array<uint8_t, 256> kValues = value_table();

}  // namespace

std::string base64(std::span<const std::byte> bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;  // three bytes, four digits; n bytes need n + 1 of these
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (j < count ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) out += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

std::optional<std::vector<uint8_t>> from_base64(std::string_view text) {
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t group = 0;
  size_t digits = 0, padding = 0;
  for (const char c : text) {
    const uint8_t value = kValues[static_cast<unsigned char>(c)];
    if (value == kSpace) continue;
    if (value == kNone || (value != kPadding && padding > 0)) return std::nullopt;
    if (value == kPadding) {
      ++padding;
      continue;
    }
    group = group << 6 | value;
    if (++digits % 4 != 0) continue;
    for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<uint8_t>(group >> shift));
  }
  const size_t left = digits % 4;  // two digits are a byte, three are two; their last bits are nothing's
  if (left == 1 || (padding > 0 && (left < 2 || left + padding != 4))) return std::nullopt;
  if (left >= 2) bytes.push_back(static_cast<uint8_t>(group >> (left == 2 ? 4 : 10)));
  if (left == 3) bytes.push_back(static_cast<uint8_t>(group >> 2));
  return bytes;
}

}  // namespace quire::server
