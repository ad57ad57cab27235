// Stands in for the *.cu files where the program is compiled without CUDA.
#include "engine/cuda_backend.h"
#include "engine/cuda_logits.h"
#include "engine/cuda_profiler.h"

namespace quire {
namespace {

Error no_cuda() {
  return request_error(
      "this program is compiled without CUDA (the preset `cuda` needs nvcc 13); use --device cpu, which is "
      "the default");
}

}  // namespace

Result<MemoryOfEngine> place_on_gpu(const LoadedModel&, const EngineOptions&) {
  return no_cuda();
}

Result<std::unique_ptr<Backend>> make_cuda_backend(const std::shared_ptr<const LoadedModel>&, const EngineOptions&) {
  return no_cuda();
}

Result<Machine> open_gpu(int) {
  return no_cuda();
}

Result<std::vector<GpuInfo>> list_gpus() {
  return no_cuda();
}

Result<std::unique_ptr<CudaProfiler>> CudaProfiler::create(const std::string&) {
  return no_cuda();
}

Result<std::unique_ptr<CudaLogits>> make_cuda_logits(const std::shared_ptr<const LoadedModel>&, const StepLayout&,
                                                     int32_t, KvCacheType, int, const ForcedKernels&) {
  return no_cuda();
}

}  // namespace quire
