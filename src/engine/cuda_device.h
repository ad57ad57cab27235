// NVIDIA GPUs. No CUDA headers here: cuda_device.cu and cuda_devices.cu, or none.cpp where there is no CUDA.
#pragma once

#include "engine/backend.h"
#include "engine/compute_device.h"

namespace quire {

// Whether this program has code for GPUs.
bool has_cuda();
// Makes GPU number `gpu` the calling thread's, if its kernels take all calls of the model's steps (engine/dry_step.h);
// else an error that says why not.
Status choose_gpu(const LoadedModel& model, int gpu, KvCacheType kv_cache);
// The calling thread's GPU, as kernels are chosen by it.
Result<Machine> gpu_machine();
// The same of GPU number `gpu`, which becomes the calling thread's.
Result<Machine> open_gpu(int gpu);

// Brings the weights of these layers to the GPU of the options, and says what that leaves. Without such a GPU, a
// driver, or CUDA in this program, and for a model that has no kernels there: Fault::kRequest, saying so.
Result<MemoryOfEngine> place_on_gpu(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options,
                                    bool mtp, LayerRange layers);

// Of the calling thread's GPU; `weights` of what is used are a model's.
Result<GpuMemory> gpu_memory(int64_t weights);
// Whether the calling thread's GPU has what the options ask for.
Status check_gpu_options(const EngineOptions& options);

// The device of Device::kCuda: the GPU of the plan. Errors are those of place_on_gpu.
Result<std::unique_ptr<ComputeDevice>> make_cuda_device(const std::shared_ptr<const LoadedModel>& model,
                                                        const EnginePlan& plan);

// A GPU as `quire devices` lists it, in the order of the driver's numbers.
struct GpuInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory = 0, free = 0;  // bytes
  bool shares_memory = false;    // with the machine: `free` is what Linux says is available
  std::string kernels;           // what many rows are multiplied with: "wgmma" or "mma.sync"
  std::string unusable;          // why this program cannot use it, or empty
  double copy_bandwidth = 0.0;   // measured, bytes read and written a second; 0: not measured
};
// Those that this process sees, measured; an error says why there is none.
Result<std::vector<GpuInfo>> list_gpus();

}  // namespace quire
