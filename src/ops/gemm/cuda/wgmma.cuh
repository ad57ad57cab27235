// wgmma.m64nNk16 with A in registers and B in shared memory. sm_90a.
#pragma once

#include <cstdint>

namespace quire::gemm {

// B as it lies in shared memory: rows of 64 columns (128 bytes), the eight 16-byte pieces of a row exchanged by the
// row's number modulo 8 (the 128-byte swizzle), groups of eight rows 1024 bytes apart; `at` aligned to 1024 bytes.
// Adding 2 to the descriptor moves on by 16 columns.
__device__ inline uint64_t token_descriptor(uint32_t at) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 16) | ((at & 0x3ffffu) >> 4);
}

// d += a * B, or d = a * B where `add` is 0, with d of 64 x N: element 4 i + {0, 1, 2, 3} of a lane 4 g + t of warp w
// (of four) is (row 16 w + g, column 8 i + 2 t), (the same, + 1), (row 16 w + g + 8, column 8 i + 2 t), (the same, +
// 1).
template <int N>
struct Wgmma;

#define QUIRE_F1(i) "+f"(d[i])
#define QUIRE_F8(i)                                                                                                  \
  QUIRE_F1(i), QUIRE_F1(i + 1), QUIRE_F1(i + 2), QUIRE_F1(i + 3), QUIRE_F1(i + 4), QUIRE_F1(i + 5), QUIRE_F1(i + 6), \
      QUIRE_F1(i + 7)
#define QUIRE_F16(i) QUIRE_F8(i), QUIRE_F8(i + 8)
#define QUIRE_F32(i) QUIRE_F16(i), QUIRE_F16(i + 16)
#define QUIRE_F64(i) QUIRE_F32(i), QUIRE_F32(i + 32)
// "%t0, ..., %t9, "
#define QUIRE_S10(t) "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define QUIRE_WGMMA(N, names, a0, a1, a2, a3, b, keep, ...)                                                           \
  template <>                                                                                                         \
  struct Wgmma<N> {                                                                                                   \
    __device__ static void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t descriptor, int32_t add) {    \
      asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %" #keep ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N         \
                   "k16.f32.bf16.bf16 {" names "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, 0;\n}" \
                   : __VA_ARGS__                                                                                      \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(add));                          \
    }                                                                                                                 \
  };

QUIRE_WGMMA(32, QUIRE_S10("") "%10, %11, %12, %13, %14, %15", 16, 17, 18, 19, 20, 21, QUIRE_F16(0))
QUIRE_WGMMA(64, QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") "%30, %31", 32, 33, 34, 35, 36, 37, QUIRE_F32(0))
QUIRE_WGMMA(96, QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") QUIRE_S10("3") "%40, %41, %42, %43, %44, %45, %46, %47", 48,
            49, 50, 51, 52, 53, QUIRE_F32(0), QUIRE_F16(32))
QUIRE_WGMMA(128,
            QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") QUIRE_S10("3") QUIRE_S10("4")
                QUIRE_S10("5") "%60, %61, %62, %63",
            64, 65, 66, 67, 68, 69, QUIRE_F64(0))
QUIRE_WGMMA(160,
            QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") QUIRE_S10("3") QUIRE_S10("4") QUIRE_S10("5")
                QUIRE_S10("6") "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79",
            80, 81, 82, 83, 84, 85, QUIRE_F64(0), QUIRE_F16(64))
QUIRE_WGMMA(192,
            QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") QUIRE_S10("3") QUIRE_S10("4") QUIRE_S10("5") QUIRE_S10("6")
                QUIRE_S10("7") QUIRE_S10("8") "%90, %91, %92, %93, %94, %95",
            96, 97, 98, 99, 100, 101, QUIRE_F64(0), QUIRE_F32(64))
QUIRE_WGMMA(256,
            QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") QUIRE_S10("3") QUIRE_S10("4") QUIRE_S10("5") QUIRE_S10("6")
                QUIRE_S10("7") QUIRE_S10("8") QUIRE_S10("9") QUIRE_S10("10")
                    QUIRE_S10("11") "%120, %121, %122, %123, %124, %125, %126, %127",
            128, 129, 130, 131, 132, 133, QUIRE_F64(0), QUIRE_F64(64))

#undef QUIRE_WGMMA
#undef QUIRE_S10
#undef QUIRE_F64
#undef QUIRE_F32
#undef QUIRE_F16
#undef QUIRE_F8
#undef QUIRE_F1

}  // namespace quire::gemm
