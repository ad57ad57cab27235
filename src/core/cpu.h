// What the CPU offers, as far as kernels care.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C: the baseline
  bool avx_vnni = false;     // 256-bit integer products without AVX-512: vpdpwssd
  bool avx512 = false;       // F, BW, DQ, VL (x86-64-v4) with VBMI
  bool avx512_bf16 = false;  // vdpbf16ps
  bool avx512_fp16 = false;
  bool amx_bf16 = false;  // AMX tiles with bf16 products, and the kernel's permission to use them
};

// What kernels are written for, each with all before it; but some CPUs with AVX-512 lack AVX-VNNI.
enum class CpuLevel { kAvx2, kAvxVnni, kAvx512, kAvx512Bf16, kAmx };

std::string_view cpu_level_name(CpuLevel level);  // avx2, avx_vnni, avx512, avx512_bf16, amx
bool reaches(const CpuFeatures& f, CpuLevel level);

// Read once; asks Linux for the AMX tile state on the first call (the permission is per process).
const CpuFeatures& cpu_features();

// `--cpu`: from here on cpu_features() leaves out what lies above the level of this name, so that one machine
// runs the kernels of older ones. Features joined by '+' ("avx2+avx512+avx512_bf16", a Zen 4) leave out all others. For
// the start of a program: not beside other threads, nor with engines there already. An unknown name, or a level that
// this CPU does not reach, is a request error that lists those it does.
Status limit_cpu(std::string_view level);

// "avx2 avx_vnni avx512 avx512_bf16 amx_bf16"
std::string describe(const CpuFeatures& f);

// CPUs that this process may use, at least 1: those of its affinity mask, and no more than the CPU quota of its control
// groups. The default number of threads.
int available_cpus();

}  // namespace quire
