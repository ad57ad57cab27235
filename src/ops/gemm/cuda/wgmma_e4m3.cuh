// wgmma.m64nNk32 of E4M3 with A in registers and B in shared memory. sm_90a.
//
// B lies as wgmma.cuh says, with 128 columns in the 128 bytes of a row: adding 2 to the descriptor moves on by the 32
// columns of one product. a[0] of lane 4 g + t holds columns 4 t ... 4 t + 3 of row g, a[1] of row g + 8; a[2] and a[3]
// the columns 16 further. Sums lie as those of Wgmma<N>.
#pragma once

#include <cstdint>

namespace quire::gemm {

template <int N>
struct WgmmaE4m3;

#define QUIRE_F8(i)                                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define QUIRE_F16(i) QUIRE_F8(i), QUIRE_F8(i + 8)
#define QUIRE_F32(i) QUIRE_F16(i), QUIRE_F16(i + 16)
// "%t0, ..., %t9, "
#define QUIRE_S10(t) "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define QUIRE_WGMMA(N, names, a0, a1, a2, a3, b, keep, ...)                                                        \
  template <>                                                                                                      \
  struct WgmmaE4m3<N> {                                                                                            \
    __device__ static void multiply(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t descriptor, int32_t add) { \
      asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %" #keep ", 0;\n wgmma.mma_async.sync.aligned.m64n" #N      \
                   "k32.f32.e4m3.e4m3 {" names "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1;\n}" \
                   : __VA_ARGS__                                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor), "r"(add));                       \
    }                                                                                                              \
  };

QUIRE_WGMMA(32, QUIRE_S10("") "%10, %11, %12, %13, %14, %15", 16, 17, 18, 19, 20, 21, QUIRE_F16(0))
QUIRE_WGMMA(64, QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") "%30, %31", 32, 33, 34, 35, 36, 37, QUIRE_F32(0))
QUIRE_WGMMA(96, QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") QUIRE_S10("3") "%40, %41, %42, %43, %44, %45, %46, %47", 48,
            49, 50, 51, 52, 53, QUIRE_F32(0), QUIRE_F16(32))
QUIRE_WGMMA(128,
            QUIRE_S10("") QUIRE_S10("1") QUIRE_S10("2") QUIRE_S10("3") QUIRE_S10("4")
                QUIRE_S10("5") "%60, %61, %62, %63",
            64, 65, 66, 67, 68, 69, QUIRE_F32(0), QUIRE_F32(32))

#undef QUIRE_WGMMA
#undef QUIRE_S10
#undef QUIRE_F32
#undef QUIRE_F16
#undef QUIRE_F8

}  // namespace quire::gemm
