// Return codes of the CUDA runtime as errors. Every call is checked: an error that nobody looked at surfaces later, in
// somebody else's call.
#pragma once

#include <cuda_runtime_api.h>

#include "core/result.h"

namespace quire::cuda {

// Nothing wrong, or "doing: the runtime's words (its name)". Running out of memory is Fault::kCapacity. The runtime
// also remembers an error for the calling thread's next cudaGetLastError(), which would take it for that of another
// launch: here it is forgotten. What damaged the device comes back with every call.
inline Status check(cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();
  const Fault fault = code == cudaErrorMemoryAllocation ? Fault::kCapacity : Fault::kBug;
  return Error{fault, fmt::format("{}: {} ({})", doing, cudaGetErrorString(code), cudaGetErrorName(code))};
}

// For a launch, right after it: an argument or a resource that the driver refused.
inline Status check_launch(std::string_view kernel) {
  return check(cudaGetLastError(), kernel);
}

}  // namespace quire::cuda
