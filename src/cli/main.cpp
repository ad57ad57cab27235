// Compiled for plain x86-64 (see cmake/QuireLayer.cmake): an older CPU must reach the message below.
#include <cstdio>

namespace quire::cli {
int run_program(int argc, char** argv);
}

int main(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2") ||
      !__builtin_cpu_supports("f16c")) {
    std::fputs("quire: this CPU lacks AVX2, FMA, BMI2 or F16C; an x86-64-v3 CPU (2013 or later) is needed\n", stderr);
    return 2;
  }
  return quire::cli::run_program(argc, argv);
}
