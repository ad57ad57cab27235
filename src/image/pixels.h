// A picture in memory: rows of red, green and blue, 8 bits each, without padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "core/result.h"

namespace quire::image {

using Bytes = std::span<const std::byte>;

// Memory whose contents are not set. Whatever a picture's size decides is asked for here: that there is no memory is a
// client's answer, and no end of the program.
template <class T>
Result<std::unique_ptr<T[]>> allocate(size_t count) {
  std::unique_ptr<T[]> memory(new (std::nothrow) T[count]);
  if (!memory) return capacity_error("no memory for a picture ({} bytes)", count * sizeof(T));
  return Result<std::unique_ptr<T[]>>(std::move(memory));
}

class Pixels {
 public:
  static Result<Pixels> make(int64_t width, int64_t height) {
    Pixels p;
    p.width_ = width;
    p.height_ = height;
    QUIRE_TRY(p.memory_, allocate<uint8_t>(static_cast<size_t>(width * height * 3)));
    return Result<Pixels>(std::move(p));
  }

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  int64_t row_bytes() const { return width_ * 3; }
  uint8_t* row(int64_t y) { return memory_.get() + y * row_bytes(); }
  const uint8_t* row(int64_t y) const { return memory_.get() + y * row_bytes(); }
  std::span<const uint8_t> bytes() const { return {memory_.get(), static_cast<size_t>(row_bytes() * height_)}; }

 private:
  int64_t width_ = 0, height_ = 0;
  std::unique_ptr<uint8_t[]> memory_;
};

}  // namespace quire::image
