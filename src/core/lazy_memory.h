// A range of zeroed memory whose pages are backed when they are first written: reserving much costs nothing.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "core/result.h"

namespace quire {

class LazyMemory {
 public:
  LazyMemory() = default;
  // `what` the memory is for, in a message: "random weights". Begins on a page.
  static Result<LazyMemory> reserve(size_t bytes, std::string_view what);
  LazyMemory(LazyMemory&& o) noexcept : bytes_(std::exchange(o.bytes_, {})) {}
  LazyMemory& operator=(LazyMemory&& o) noexcept {
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~LazyMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  // For what is written all over: asks for huge pages, where the system has them.
  void prefer_huge_pages() const;

 private:
  std::span<std::byte> bytes_;
};

}  // namespace quire
