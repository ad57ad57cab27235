// A kernel's side of core/cuda/launch.h. Before sm_90 kernels start one after the other, and there is nothing to say.
#pragma once

#include "core/cuda/target.cuh"

namespace quire::cuda {

// Until all kernels before this one have ended and what they wrote can be seen.
__device__ __forceinline__ void wait_for_previous_kernels() {
  if constexpr (kForSm90) asm volatile("griddepcontrol.wait;" ::: "memory");
}
// The next kernel may be brought in beside this one; it waits for this one's end by itself.
__device__ __forceinline__ void let_next_kernel_start() {
  if constexpr (kForSm90) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Brings a kernel's parameters near, which take as long to come as what they point to: for what is used after the wait.
template <class Params>
__device__ __forceinline__ void touch(const Params& params) {
#pragma unroll
  for (unsigned i = 0; i < sizeof(Params) / 4; i += 16)  // a word of every 64 bytes
    asm volatile("" : : "r"(reinterpret_cast<const unsigned*>(&params)[i]));
}
// For kernels that have nothing to do before.
template <class... Params>
__device__ __forceinline__ void begin_kernel(const Params&... params) {
  let_next_kernel_start();
  (touch(params), ...);
  wait_for_previous_kernels();
}

}  // namespace quire::cuda
