// What launches need to know of the current device.
#pragma once

#include "core/cuda/check.h"

namespace quire::cuda {

struct DeviceLimits {
  int multiprocessors = 0;
  int shared_bytes = 0;  // of one block, after cudaFuncSetAttribute
  int major = 0;         // compute capability
};

// Of the current device. The runtime keeps these attributes on the host: no synchronisation.
inline Result<DeviceLimits> device_limits() {
  int device = 0;
  DeviceLimits d;
  QUIRE_CHECKED(check(cudaGetDevice(&device), "cudaGetDevice"));
  const auto read = [&](int* to, cudaDeviceAttr what) {
    return check(cudaDeviceGetAttribute(to, what, device), "reading the limits of the device");
  };
  QUIRE_CHECKED(read(&d.multiprocessors, cudaDevAttrMultiProcessorCount));
  QUIRE_CHECKED(read(&d.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  QUIRE_CHECKED(read(&d.major, cudaDevAttrComputeCapabilityMajor));
  return d;
}

}  // namespace quire::cuda
