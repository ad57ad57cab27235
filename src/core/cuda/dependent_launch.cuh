// A kernel's side of core/cuda/launch.h.
#pragma once

namespace quire::cuda {

// Until all kernels before this one have ended and what they wrote can be seen.
__device__ __forceinline__ void wait_for_previous_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may be brought in beside this one; it waits for this one's end by itself.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Both, for kernels that have nothing to do before.
__device__ __forceinline__ void begin_kernel() {
  let_next_kernel_start();
  wait_for_previous_kernels();
}

}  // namespace quire::cuda
