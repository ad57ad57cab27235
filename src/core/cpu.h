// What the CPU offers, as far as kernels care.
#pragma once

#include <string>

namespace quire {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C: the baseline
  bool avx512 = false;       // F, BW, DQ, VL (x86-64-v4) with VBMI
  bool avx512_bf16 = false;  // vdpbf16ps
  bool avx512_fp16 = false;
  bool amx_bf16 = false;  // AMX tiles with bf16 products, and the kernel's permission to use them
};

// Read once; asks Linux for the AMX tile state on the first call (the permission is per process).
const CpuFeatures& cpu_features();

// "avx2 avx512 avx512_bf16 amx_bf16"
std::string describe(const CpuFeatures& f);

// CPUs that this process may run on (its affinity mask), at least 1: the default number of threads.
int available_cpus();

}  // namespace quire
