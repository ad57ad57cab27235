// A read-only memory mapping of a whole file, unmapped on destruction.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/result.h"

namespace quire::gguf {

class Mapping {
 public:
  // Fails if the file is missing, unreadable, empty or not a regular file. Changing the file while it is
  // mapped changes the bytes; truncating it makes reads past the new end fatal (SIGBUS), as for any mapped
  // file.
  static Result<Mapping> open(const std::string& path);

  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(base_), size_}; }

  // Asks the kernel to start reading the whole file; returns at once.
  void prefetch() const;

 private:
  Mapping(void* base, size_t size) : base_(base), size_(size) {}

  void* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace quire::gguf
