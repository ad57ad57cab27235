// Steps on an NVIDIA GPU. No CUDA headers here: cuda_backend.cu and cuda_devices.cu, or none.cpp where there is no CUDA.
#pragma once

#include "engine/backend.h"

namespace quire {

// Makes the first GPU current, if it can run such a model; else an error that says why not.
Status choose_gpu(const ModelConfig& model);

// The backend of Device::kCuda on the first GPU. Weights are copied and packed here, and everything is allocated: what does
// not fit is said with numbers. Without a GPU, a driver, or CUDA in this program: Fault::kRequest, saying so.
Result<std::unique_ptr<Backend>> make_cuda_backend(const std::shared_ptr<const LoadedModel>& model,
                                                   const EngineOptions& options);

// A GPU as `quire devices` lists it.
struct GpuInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory = 0, free = 0;  // bytes
  std::string kernels;           // what many rows are multiplied with: "wgmma" or "mma.sync"
  std::string unusable;          // why this program cannot use it, or empty
  double copy_bandwidth = 0.0;   // measured, bytes read and written a second; 0: not measured
};
// Those that this process sees, measured; an error says why there is none.
Result<std::vector<GpuInfo>> list_gpus();

}  // namespace quire
