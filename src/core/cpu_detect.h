// What the CPU and Linux say that they offer: cpu_detect_x86.cpp, cpu_detect_arm.cpp. For core/cpu.cpp.
#pragma once

#include "core/cpu.h"

namespace quire {

CpuFeatures detect_cpu_features();

}  // namespace quire
