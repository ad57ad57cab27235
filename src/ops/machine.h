// What a kernel may be chosen by, besides shapes and types: where operators run, and what a kernel needs there.
#pragma once

#include <string>
#include <string_view>

#include "core/cpu.h"
#include "core/cuda/limits.h"

namespace quire {

enum class Device {
  kReference,  // plain loops in float32/float64, activations float32: the oracle
  kCpu,        // the fast kernels, activations bf16
  kCuda,       // an NVIDIA GPU: everything that operators read and write lies in its memory, activations bf16
};

struct Machine {
  Device device = Device::kCpu;
  CpuFeatures cpu = cpu_features();  // tests switch features off to walk the whole table
  cuda::DeviceLimits gpu = {};       // Device::kCuda
  bool fp4 = false;                  // likewise: the code that the GPU runs has products of 4-bit floats
};

// What a GPU's kernels are written for.
enum class GpuLevel {
  kMma,      // compute capability 8.0 and newer
  kWgmma,    // 9.0, and code for sm_90a
  kNoWgmma,  // 8.0 and newer, where the code is not for sm_90a: it holds such a kernel in place of one with wgmma
  kFp4,      // 12.x, and code for its products of 4-bit floats
};

// What a machine must have for a kernel to run there at all.
struct Needs {
  constexpr Needs(CpuLevel level) : cpu(level) {}                         // NOLINT(google-explicit-constructor)
  constexpr Needs(GpuLevel level) : device(Device::kCuda), gpu(level) {}  // NOLINT(google-explicit-constructor)

  Device device = Device::kCpu;  // or kCuda; what is for a CPU runs on Device::kReference, too
  CpuLevel cpu = CpuLevel::kBase;
  GpuLevel gpu = GpuLevel::kMma;
};

// Whether the kernel is for this device, whatever the device offers.
constexpr bool is_for(Device device, const Needs& needs) {
  return (device == Device::kCuda) == (needs.device == Device::kCuda);
}
// Whether it is, and the device offers what the kernel needs.
bool reaches(const Machine& m, const Needs& needs);

// A card that need not be there: "sm_90:132" has compute capability 9.0 and 132 multiprocessors, and runs the code for
// it. An error for what is none, or is older than kernels are for.
Result<Machine> parse_card(std::string_view text);

// "a CPU with avx512", "a GPU of compute capability 9.0".
std::string describe(const Needs& needs);
// "a CPU with avx2 avx_vnni", "a GPU of compute capability 9.0 with 132 multiprocessors".
std::string describe(const Machine& m);

}  // namespace quire
