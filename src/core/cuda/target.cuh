// What device code is being compiled for, as constants: a kernel's body that needs more stands behind `if constexpr`.
// On the host all are false; there DeviceLimits (core/cuda/device.h) says which code the driver runs.
#pragma once

namespace quire::cuda {

#ifdef __CUDA_ARCH__
inline constexpr bool kForSm90 = __CUDA_ARCH__ >= 900;  // programmatic dependent launch, bulk copies
#else
inline constexpr bool kForSm90 = false;
#endif

// wgmma, setmaxnreg: of sm_90a alone, not of what came later.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kForWgmma = true;
#else
inline constexpr bool kForWgmma = false;
#endif

}  // namespace quire::cuda
