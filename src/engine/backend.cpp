#include "engine/backend.h"

#include <algorithm>

#include "core/memory.h"
#include "engine/cpu_device.h"
#include "engine/cuda_device.h"
#include "engine/step_backend.h"
#include "ops/gemm/repack.h"

namespace quire {

std::string numerics_of(const Machine& m, const KernelChoice& forced) {
  std::string s = "reference";
  if (m.device == Device::kCpu) s = fmt::format("cpu {}", describe(m.cpu));
  if (m.device == Device::kCuda)
    s = fmt::format("cuda sm_{}{}{}", m.gpu.major, m.gpu.minor, m.gpu.wgmma ? "" : " mma.sync");
  for (const auto& [op, kernel] : forced.forced) s += fmt::format(" {}={}", op, kernel);
  return s;
}

HostPages host_pages_of(const EnginePlan& plan, int64_t block_bytes) {
  if (block_bytes <= 0) return {};
  const int64_t longest = (plan.context + kBlockTokens - 1) / kBlockTokens,
                swap = std::min({plan.swap_bytes / block_bytes, longest * plan.max_sequences, int64_t{INT32_MAX}}),
                cache = plan.prefix_cache ? plan.prefix_host_bytes / block_bytes : 0;
  return {static_cast<int32_t>(swap), static_cast<int32_t>(std::min(cache, INT32_MAX - swap))};
}

Result<MemoryOfEngine> memory_for(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options,
                                  bool mtp) {
  if (options.device == Device::kCuda) return place_on_gpu(model, options, mtp);
  // What was made of a folder is in use already; what is mapped is read for every token.
  const int64_t mapped = static_cast<int64_t>(model->file.mapped_bytes()) - model->file.made_bytes();
  int64_t host = std::max<int64_t>(available_memory() - mapped, 0);
  // Where weights are repacked, that comes before a longer context.
  if (options.device == Device::kCpu && options.repack && options.max_sequences > 0 &&
      for_latency(options.arithmetic, options.max_sequences)) {
    const int64_t copies = RepackedWeights::bytes_for(model->model->matrices());
    if (copies <= host / 2) host -= copies;
  }
  host /= options.host_parts;
  EncoderRoom encoder;
  if (model->vision) {
    encoder = encoder_room(*model->vision);
    host = std::max<int64_t>(0, host - EncoderMemory(model->vision->tower->config(), encoder).bytes());
  }
  return MemoryOfEngine{.memory = {.host = host, .encoder = encoder}};
}

Result<std::unique_ptr<ComputeDevice>> make_device(const std::shared_ptr<const LoadedModel>& model,
                                                   const EnginePlan& plan) {
  if (plan.device == Device::kCuda) return make_cuda_device(model, plan);
  return std::unique_ptr<ComputeDevice>(std::make_unique<CpuDevice>(model, plan));
}

BackendFactory backend_over(DeviceFactory make) {
  return [make = std::move(make)](const std::shared_ptr<const LoadedModel>& model,
                                  const EnginePlan& plan) -> Result<std::unique_ptr<Backend>> {
    QUIRE_TRY(std::unique_ptr<ComputeDevice> device, make(model, plan));
    QUIRE_TRY(std::unique_ptr<StepBackend> backend, StepBackend::create(model, plan, std::move(device)));
    return std::unique_ptr<Backend>(std::move(backend));
  };
}

Result<std::unique_ptr<Backend>> make_backend(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan) {
  return backend_over(make_device)(model, plan);
}

}  // namespace quire
