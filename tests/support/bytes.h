// Bytes for tests: from hexadecimal text, and built up field by field, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::test {

// "00 2c f0" -> three bytes; spaces are ignored.
inline std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> out;
  std::string digits;
  for (const char c : text)
    if (c != ' ' && c != '\n') digits += c;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return out;
}

class Bytes {
 public:
  template <class T>
  Bytes& put(T x) {
    const auto* p = reinterpret_cast<const std::byte*>(&x);
    data.insert(data.end(), p, p + sizeof x);
    return *this;
  }
  Bytes& u8(uint8_t x) { return put(x); }
  Bytes& u32(uint32_t x) { return put(x); }
  Bytes& u64(uint64_t x) { return put(x); }
  Bytes& f32(float x) { return put(x); }
  Bytes& raw(std::string_view text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    data.insert(data.end(), p, p + text.size());
    return *this;
  }
  Bytes& string(std::string_view text) { return u64(text.size()).raw(text); }
  Bytes& zeros(size_t n) {
    data.resize(data.size() + n);
    return *this;
  }
  Bytes& pad(size_t alignment) { return zeros((alignment - data.size() % alignment) % alignment); }
  template <class T>
  void poke(size_t at, T x) {
    std::memcpy(data.data() + at, &x, sizeof x);
  }

  std::span<const std::byte> span() const { return data; }
  std::vector<std::byte> data;
};

}  // namespace quire::test
