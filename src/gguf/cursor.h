// A bounds-checked reading position over the bytes of a file. Every read first asks whether the bytes are
// there
// (`n <= remaining`, never `pos + n <= size`, which can wrap), and an error says what was being read and
// where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "core/result.h"

namespace quire::gguf {

// Caps that no real file comes near; they keep sums of sizes far away from 2^63.
inline constexpr uint64_t kMaxStringBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxArrayElements = uint64_t{1} << 30;

class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return pos_; }
  uint64_t remaining() const { return bytes_.size() - pos_; }

  // `field` names what is read, for the message.
  Result<const std::byte*> take_bytes(std::string_view field, uint64_t n) {
    if (n > remaining())
      return file_error(
          "{} at byte {} needs {} bytes, but the file ends after {}; it is truncated or damaged, copy it "
          "again",
          field, pos_, n, remaining());
    const std::byte* at = bytes_.data() + pos_;
    pos_ += n;
    return at;
  }

  template <class T>
  Result<T> take(std::string_view field) {
    QUIRE_TRY(const std::byte* at, take_bytes(field, sizeof(T)));
    T x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }

  // u64 length, then the bytes. The result points into the file.
  Result<std::string_view> take_string(std::string_view field) {
    const uint64_t start = pos_;
    QUIRE_TRY(const uint64_t length, take<uint64_t>(field));
    if (length > kMaxStringBytes)
      return file_error("{} at byte {} claims to be {} bytes long (limit {}); the file is damaged", field, start,
                        length, kMaxStringBytes);
    QUIRE_TRY(const std::byte* at, take_bytes(field, length));
    return std::string_view(reinterpret_cast<const char*>(at), length);
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t pos_ = 0;
};

}  // namespace quire::gguf
