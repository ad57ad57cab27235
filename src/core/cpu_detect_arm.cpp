#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "core/cpu_detect.h"

namespace quire {

// Linux names what the CPU has and what it saves when threads change places (elf_hwcaps in its documentation of arm64).
CpuFeatures detect_cpu_features() {
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  CpuFeatures f;
  f.base = (first & HWCAP_ASIMD) != 0;
  f.dotprod = f.base && (first & HWCAP_ASIMDDP) != 0;
  f.i8mm = f.dotprod && (second & HWCAP2_I8MM) != 0;
  f.bf16 = f.i8mm && (second & HWCAP2_BF16) != 0;
  return f;
}

}  // namespace quire
