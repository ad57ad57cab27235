// Prefetching of a line that will be read or written soon, for kernels that walk at strides which the
// hardware's prefetchers do not follow. GCC 12 takes a function that only prefetches for one without effect
// and leaves its calls out; the empty asm says otherwise.
#pragma once

namespace quire::simd {
namespace {

inline void prefetch_read(const void* line) {
  __builtin_prefetch(line, 0);
  asm volatile("");
}
inline void prefetch_write(const void* line) {
  __builtin_prefetch(line, 1);
  asm volatile("");
}

}  // namespace
}  // namespace quire::simd
