// Return codes of the CUDA runtime as errors. Every call is checked: an error that nobody looked at surfaces later, in
// somebody else's call.
#pragma once

#include <cuda_runtime_api.h>

#include "core/result.h"

namespace quire::cuda {

// Nothing wrong, or "doing: the runtime's words (its name)". Running out of memory is Fault::kCapacity.
inline Status check(cudaError_t code, std::string_view doing) {
  if (code == cudaSuccess) return {};
  const Fault fault = code == cudaErrorMemoryAllocation ? Fault::kCapacity : Fault::kBug;
  return Error{fault, fmt::format("{}: {} ({})", doing, cudaGetErrorString(code), cudaGetErrorName(code))};
}

// For a launch, right after it: an argument or a resource that the driver refused.
inline Status check_launch(std::string_view kernel) {
  return check(cudaGetLastError(), kernel);
}

}  // namespace quire::cuda
