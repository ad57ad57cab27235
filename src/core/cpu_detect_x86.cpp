#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/cpu_detect.h"

namespace quire {
namespace {

constexpr int kArchReqXcompPerm = 0x1023;  // asm/prctl.h
constexpr int kXfeatureXtiledata = 18;

}  // namespace

CpuFeatures detect_cpu_features() {
  CpuFeatures f;
  // The compiler's check covers the operating system's side (saved ymm and zmm state) too.
  f.base = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  const bool amx_tile = d & (1u << 24), amx_bf16 = d & (1u << 22);
  f.avx512_fp16 = f.avx512 && (d & (1u << 23));
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx_vnni = f.base && (a & (1u << 4));
    f.avx512_bf16 = f.avx512 && (a & (1u << 5));
  }
  if (f.avx512_bf16 && f.avx512_fp16 && amx_tile && amx_bf16)
    f.amx_bf16 = syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
  return f;
}

}  // namespace quire
