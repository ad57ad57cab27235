// Prompt attention by the kernel that this GPU has for such heads.
#pragma once

#include "core/cuda/device.h"
#include "ops/attention/cuda/attention.h"

namespace quire::cuda_test {

inline Status launch_prompt_attention(cudaStream_t stream, const cuda::AttentionParams& p, int rows) {
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  if (p.head_size == cuda::kWideHeadSize) return cuda::launch_prompt_wide(stream, p, rows);
  return device.wgmma ? cuda::launch_prompt_wgmma(stream, p, rows) : cuda::launch_prompt_mma(stream, p, rows);
}

}  // namespace quire::cuda_test
