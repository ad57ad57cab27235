// Beside core/cuda/target.cuh: whether device code is compiled for mma.sync of 4-bit floats with scales of blocks,
// which sm_120a, sm_121a and the family sm_120f have. Their kernels have no code elsewhere, but with QUIRE_EMULATE_FP4
// (an option of CMake, for tests): then everything but the product itself is what 12.x runs.
#pragma once

namespace quire::cuda {

#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
inline constexpr bool kForFp4 = true;
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
inline constexpr bool kForFp4 = __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1200 && __CUDA_ARCH_FAMILY_SPECIFIC__ < 1300;
#else
inline constexpr bool kForFp4 = false;
#endif
#ifdef QUIRE_EMULATE_FP4
inline constexpr bool kHasFp4 = true;
#else
inline constexpr bool kHasFp4 = kForFp4;
#endif

}  // namespace quire::cuda
