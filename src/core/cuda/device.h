// What launches need to know of the current device, and of the code that runs on it.
#pragma once

#include "core/cuda/check.h"

namespace quire::cuda {

inline constexpr int kOldestMajor = 8;  // compute capability 8.0: mma.sync of bf16, cp.async

struct DeviceLimits {
  int multiprocessors = 0;
  int shared_bytes = 0;      // of one block, after cudaFuncSetAttribute
  int major = 0, minor = 0;  // compute capability
  // A program holds code for several architectures, and PTX that a driver compiles for newer ones: which of them it chose
  // decides what kernels can do, not the device. core/cuda/target.cuh says the same to device code.
  bool dependent_launch =
      false;           // code for sm_90 and newer: kernels can wait for those before them by themselves
  bool wgmma = false;  // code for sm_90a
};

// Of the current device, looked up once. Errors: a device older than 8.0, or none of whose code is in this program, is
// Fault::kRequest; one that does not answer is Fault::kBug. Safe to call from several threads and while a stream is captured.
Result<DeviceLimits> device_limits();

// For tests: device_limits().shared_bytes is at most this from now on, as on a smaller card, and what asks for more is
// refused (core/cuda/launch.h); 0: what the device has.
void cap_shared_memory(int bytes);

}  // namespace quire::cuda
