// What the code for vectors of 256 bits uses of AVX2's intrinsics, on ARM: each as two NEON vectors, to the same bits
// (tests/core/m256_test.cpp), so that this code is written once. Included by m256.h alone, by way of m256_neon_float.h
// and m256_neon_integer.h. What each does is in Intel's Intrinsics Guide.
//
// Where they differ on purpose: conversions of a NaN to an integer give 0, those out of range the nearest integer.
// Everything has internal linkage.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

using __m128 = float32x4_t;
using __m128i = int32x4_t;
struct __m256 {
  float32x4_t lo, hi;
};
struct __m256i {
  int32x4_t lo, hi;
};
struct __m256d {
  float64x2_t lo, hi;
};

namespace {

#define QUIRE_M256 [[gnu::always_inline]] inline

// ---- The same bits as other elements

QUIRE_M256 uint32x4_t u32_of(int32x4_t v) {
  return vreinterpretq_u32_s32(v);
}
QUIRE_M256 int32x4_t of_u32(uint32x4_t v) {
  return vreinterpretq_s32_u32(v);
}
QUIRE_M256 int16x8_t s16_of(int32x4_t v) {
  return vreinterpretq_s16_s32(v);
}
QUIRE_M256 int32x4_t of_s16(int16x8_t v) {
  return vreinterpretq_s32_s16(v);
}
QUIRE_M256 uint16x8_t u16_of(int32x4_t v) {
  return vreinterpretq_u16_s32(v);
}
QUIRE_M256 int32x4_t of_u16(uint16x8_t v) {
  return vreinterpretq_s32_u16(v);
}
QUIRE_M256 int8x16_t s8_of(int32x4_t v) {
  return vreinterpretq_s8_s32(v);
}
QUIRE_M256 int32x4_t of_s8(int8x16_t v) {
  return vreinterpretq_s32_s8(v);
}
QUIRE_M256 uint8x16_t u8_of(int32x4_t v) {
  return vreinterpretq_u8_s32(v);
}
QUIRE_M256 int32x4_t of_u8(uint8x16_t v) {
  return vreinterpretq_s32_u8(v);
}
QUIRE_M256 int64x2_t s64_of(int32x4_t v) {
  return vreinterpretq_s64_s32(v);
}
QUIRE_M256 int32x4_t of_s64(int64x2_t v) {
  return vreinterpretq_s32_s64(v);
}
QUIRE_M256 uint64x2_t u64_of(int32x4_t v) {
  return vreinterpretq_u64_s32(v);
}
QUIRE_M256 int32x4_t of_u64(uint64x2_t v) {
  return vreinterpretq_s32_u64(v);
}

// An operation on both halves.
#define QUIRE_HALVES2(Type, name, expression)                           \
  QUIRE_M256 Type name(Type v, Type w) {                                \
    const auto of = [](auto a, auto b) __attribute__((always_inline)) { \
      return expression;                                                \
    };                                                                  \
    return {of(v.lo, w.lo), of(v.hi, w.hi)};                            \
  }
#define QUIRE_HALVES3(Type, name, expression)                                   \
  QUIRE_M256 Type name(Type v, Type w, Type u) {                                \
    const auto of = [](auto a, auto b, auto c) __attribute__((always_inline)) { \
      return expression;                                                        \
    };                                                                          \
    return {of(v.lo, w.lo, u.lo), of(v.hi, w.hi, u.hi)};                        \
  }

}  // namespace
