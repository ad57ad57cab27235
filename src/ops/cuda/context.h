// Where the operators of Device::kCuda enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "core/cuda/check.h"

namespace quire::cuda {

// One for each backend. Scratch memory comes from OpContext::workspace, which then lies on the device.
struct Context {
  cudaStream_t stream = nullptr;
  // Operators take their scratch memory and enqueue nothing: finds out how much a step needs.
  bool dry = false;
  // The first thing that went wrong since it was last looked at. Operators after it may enqueue nonsense, whose results
  // nobody reads.
  Status status;

  void keep(Status s) {
    if (status.ok() && !s.ok()) status = std::move(s);
  }
};

}  // namespace quire::cuda
