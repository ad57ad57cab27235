#include "command/cpu_check.h"

#include <cstdio>

namespace quire::cli {

bool cpu_suffices() {
#ifdef __aarch64__
  return true;  // what Linux for ARM itself needs
#else
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("f16c"))
    return true;
  std::fputs("quire: this CPU lacks AVX2, FMA, BMI2 or F16C; an x86-64-v3 CPU (2013 or later) is needed\n", stderr);
  return false;
#endif
}

}  // namespace quire::cli
