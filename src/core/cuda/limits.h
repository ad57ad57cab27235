// What a GPU and the code that it runs offer, without CUDA's headers.
#pragma once

namespace quire::cuda {

inline constexpr int kOldestMajor = 8;  // compute capability 8.0: mma.sync of bf16, cp.async

struct DeviceLimits {
  int multiprocessors = 0;
  int shared_bytes = 0;      // of one block, after cudaFuncSetAttribute
  int major = 0, minor = 0;  // compute capability
  bool integrated = false;   // its memory is the machine's
  // A program holds code for several architectures, and PTX that a driver compiles for newer ones: which of them it
  // chose decides what kernels can do, not the device. core/cuda/target.cuh says the same to device code.
  bool dependent_launch = false;  // code for sm_90 and newer: kernels can wait for those before them by themselves
  bool wgmma = false;             // code for sm_90a
};

}  // namespace quire::cuda
