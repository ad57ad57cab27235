// Adding up the sizes of caches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/dtype.h"

namespace quire {

inline constexpr int64_t kCachePage = 4096;
inline constexpr int64_t kCacheAlign = 64;  // of every member of a block or slot

// Adds up sizes of factors from files; nothing once a sum or product is beyond 64 bits (with room for rounding up).
class CacheBytes {
 public:
  void add(DType dtype, std::span<const int64_t> dims) {
    int64_t elems = 1;
    for (const int64_t d : dims) ok_ = ok_ && d >= 0 && !__builtin_mul_overflow(elems, d, &elems);
    ok_ = ok_ && elems < INT64_MAX / 16;
    if (ok_) add_bytes(dtype_bytes(dtype, elems), 1);
  }
  void add_bytes(int64_t bytes, int64_t times) {
    ok_ = ok_ && bytes <= INT64_MAX - kCachePage;
    if (!ok_) return;
    bytes = (bytes + kCacheAlign - 1) / kCacheAlign * kCacheAlign;
    ok_ = !__builtin_mul_overflow(bytes, times, &bytes) && !__builtin_add_overflow(sum_, bytes, &sum_) &&
          sum_ <= INT64_MAX - kCachePage;
  }
  std::optional<int64_t> sum() const { return ok_ ? std::optional(sum_) : std::nullopt; }

 private:
  int64_t sum_ = 0;
  bool ok_ = true;
};

}  // namespace quire
