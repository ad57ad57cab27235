// Stands in for the *.cu files where the program is compiled without CUDA.
#include "engine/cuda_device.h"
#include "engine/cuda_logits.h"
#include "engine/cuda_profiler.h"

namespace quire {
namespace {

Error no_cuda(std::string_view instead = "use --device cpu") {
  return request_error("this program is compiled without CUDA (the preset `cuda` needs nvcc 13); {}", instead);
}

}  // namespace

bool has_cuda() {
  return false;
}

Result<MemoryOfEngine> place_on_gpu(const std::shared_ptr<const LoadedModel>&, const EngineOptions&, bool, LayerRange) {
  return no_cuda();
}

Result<GpuMemory> gpu_memory(int64_t) {
  return no_cuda();
}

Result<std::unique_ptr<ComputeDevice>> make_cuda_device(const std::shared_ptr<const LoadedModel>&, const EnginePlan&) {
  return no_cuda();
}

Result<Machine> open_gpu(int) {
  return no_cuda();
}

Result<std::vector<GpuInfo>> list_gpus() {
  return no_cuda();
}

Result<std::unique_ptr<CudaProfiler>> CudaProfiler::create(const std::string&) {
  return no_cuda("it has no kernels of a GPU to profile");
}

Result<std::unique_ptr<CudaLogits>> make_cuda_logits(const std::shared_ptr<const LoadedModel>&, const StepLayout&,
                                                     int32_t, KvCacheType, int, const ForwardOptions&,
                                                     const ForcedKernels&) {
  return no_cuda();
}

}  // namespace quire
