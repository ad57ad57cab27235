// A row of any length in vectors, the last of them partly filled. Include after vec_avx2.h or vec_avx512.h.
#pragma once

#include <cstdint>

namespace quire::simd {
namespace {

// Calls fn(i, n) for pieces of a row: n == kWidth for whole vectors, fewer for the tail.
template <class V, class Fn>
inline void for_vectors(int64_t D, Fn&& fn) {
  int64_t i = 0;
  for (; i + V::kWidth <= D; i += V::kWidth) fn(i, V::kWidth);
  if (i < D) fn(i, static_cast<int>(D - i));
}

template <class V, class T>
inline V load(const T* p, int n) {
  return n == V::kWidth ? V::load(p) : V::load(p, n);
}
template <class V, class T>
inline void store(V v, T* p, int n) {
  n == V::kWidth ? v.store(p) : v.store(p, n);
}

}  // namespace
}  // namespace quire::simd
