// What the CPU offers, as far as kernels care.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire {

// What the program is compiled for.
#if defined(__x86_64__)
inline constexpr bool kOnX86 = true, kOnArm = false;
inline constexpr std::string_view kBaseLevel = "avx2";  // x86-64-v3: AVX2, FMA, F16C
#elif defined(__aarch64__)
inline constexpr bool kOnX86 = false, kOnArm = true;
inline constexpr std::string_view kBaseLevel = "neon";  // Armv8.0-A
#else
#error "Quire runs on x86-64 and on 64-bit ARM"
#endif

struct CpuFeatures {
  bool base = false;         // what every file is compiled for: kBaseLevel
  bool avx_vnni = false;     // 256-bit integer products without AVX-512: vpdpwssd
  bool avx512 = false;       // F, BW, DQ, VL (x86-64-v4) with VBMI
  bool avx512_bf16 = false;  // vdpbf16ps
  bool avx512_fp16 = false;
  bool amx_bf16 = false;  // AMX tiles with bf16 products, and the kernel's permission to use them
  bool dotprod = false;   // ARM: sdot, four products of bytes a lane
  bool i8mm = false;      // ARM: smmla, products of matrices of bytes
  bool bf16 = false;      // ARM: bfmmla, products of matrices of bf16
};

// What kernels are written for, each with all before it that its machine has; but some CPUs with AVX-512 lack AVX-VNNI.
// The first four after the base are x86-64's, the last three ARM's.
enum class CpuLevel { kBase, kAvxVnni, kAvx512, kAvx512Bf16, kAmx, kDotProd, kI8mm, kBf16 };

std::string_view cpu_level_name(CpuLevel level);  // kBaseLevel, avx_vnni, avx512, avx512_bf16, amx, dotprod, i8mm, bf16
bool reaches(const CpuFeatures& f, CpuLevel level);

// Read once; on x86-64 asks Linux for the AMX tile state on the first call (the permission is per process).
const CpuFeatures& cpu_features();

// `--cpu`: from here on cpu_features() leaves out what lies above the level of this name, so that one machine
// runs the kernels of older ones. Features joined by '+' ("avx2+avx512+avx512_bf16", a Zen 4) leave out all others. For
// the start of a program: not beside other threads, nor with engines there already. An unknown name, or a level that
// this CPU does not reach, is a request error that lists those it does.
Status limit_cpu(std::string_view level);

// "avx2 avx_vnni avx512 avx512_bf16 amx_bf16", "neon dotprod i8mm bf16"
std::string describe(const CpuFeatures& f);

// CPUs that this process may use and that are worth a thread (core/cpu_capacity.h), at least 1: of its affinity mask,
// and no more than the CPU quota of its control groups. The default number of threads.
int available_cpus();

}  // namespace quire
