#include "engine/backend.h"

#include <algorithm>

#include "core/memory.h"
#include "engine/cpu_device.h"
#include "engine/cuda_device.h"
#include "engine/layer_split.h"
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

namespace {

// The layers of a model over so many devices with such shares.
Result<std::vector<LayerRange>> split(const LoadedModel& model, bool mtp, std::span<const double> shares) {
  const ModelConfig& config = model.model->config();
  LayerBytes bytes = layer_bytes(model.file, config, mtp);
  if (mtp && model.mtp_file) bytes.behind += model.mtp_file->tensor_bytes();
  if (!model.vision) return split_layers(config, bytes, 0, shares);
  bytes.before += model.vision->file.tensor_bytes();
  return split_layers(config, bytes, std::ssize(model.vision->tower->config().deepstack), shares);
}

// On GPUs of which each has its layers alone.
Result<MemoryOfEngine> place_on_gpus(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options,
                                     bool mtp) {
  const int count = options.pipeline_parallel;
  std::vector<double> shares = options.tensor_split;
  for (int i = 0; i < count && std::ssize(shares) < count; ++i) {
    QUIRE_CHECKED(open_gpu(options.gpu_of_stage(i)));
    QUIRE_TRY(const GpuMemory memory, gpu_memory(0));
    shares.push_back(std::max(1.0, static_cast<double>(memory.bound(options.gpu_memory_utilization) - memory.used)));
  }
  QUIRE_TRY(const std::vector<LayerRange> ranges, split(*model, mtp, shares));
  MemoryOfEngine all;
  std::vector<std::shared_ptr<const void>> placed;
  for (int i = 0; i < count; ++i) {
    const LayerRange layers = ranges[static_cast<size_t>(i)];
    EngineOptions own = options;
    own.gpu = options.gpu_of_stage(i);
    QUIRE_TRY(MemoryOfEngine has,
              place_on_gpu(model, own, mtp && i + 1 == count, layers)
                  .context(fmt::format("stage {}, GPU {}, layers {} to {}", i, own.gpu, layers.first, layers.end - 1)));
    // Pictures are the first stage's, and rows of all.
    if (i == 0) all.memory = has.memory;
    has.memory.encoder = all.memory.encoder;
    all.stages.push_back({{own.gpu, layers}, std::move(has.memory)});
    placed.push_back(std::move(has.placed));
  }
  // All weights are there now, and stages of one GPU share what is left of it.
  for (StageMemory& s : all.stages) {
    QUIRE_CHECKED(open_gpu(s.stage.gpu));
    QUIRE_TRY(const GpuMemory now, gpu_memory(s.memory.gpu.weights));
    const int64_t bound = now.bound(options.gpu_memory_utilization),
                  sharing = std::ranges::count_if(all.stages, [&](auto&o) { return o.stage.gpu == s.stage.gpu; });
    s.memory.gpu = now;
    s.memory.gpu.used = bound - (bound - now.used) / sharing;
  }
  all.placed = std::make_shared<const std::vector<std::shared_ptr<const void>>>(std::move(placed));
  return all;
}

}  // namespace

Result<MemoryOfEngine> memory_for(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options,
                                  bool mtp) {
  const bool several = options.pipeline_parallel > 1;
  if (options.device == Device::kCuda)
    return several ? place_on_gpus(model, options, mtp)
                   : place_on_gpu(model, options, mtp, {0, model->model->config().layers});
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
  MemoryOfEngine has{.memory = {.host = host, .encoder = encoder}};
  if (!several) return has;
  std::vector<double> shares = options.tensor_split;
  shares.resize(static_cast<size_t>(options.pipeline_parallel), 1.0);
  QUIRE_TRY(const std::vector<LayerRange> ranges, split(*model, mtp, shares));
  for (const LayerRange& layers : ranges) has.stages.push_back({{0, layers}, has.memory});
  return has;
}

Result<std::unique_ptr<ComputeDevice>> make_device(const std::shared_ptr<const LoadedModel>& model,
                                                   const EnginePlan& plan) {
  if (plan.device == Device::kCuda) return make_cuda_device(model, plan);
  return std::unique_ptr<ComputeDevice>(std::make_unique<CpuDevice>(model, plan));
}

BackendFactory backend_over(DeviceFactory make) {
  return [make = std::move(make)](const std::shared_ptr<const LoadedModel>& model,
                                  const EnginePlan& plan) -> Result<std::unique_ptr<Backend>> {
    std::vector<std::unique_ptr<ComputeDevice>> devices;
    for (int i = 0; i < plan.stage_count(); ++i) {
      QUIRE_TRY(std::unique_ptr<ComputeDevice> device, make(model, plan.of_stage(i)));
      devices.push_back(std::move(device));
    }
    QUIRE_TRY(std::unique_ptr<StepBackend> backend, StepBackend::create(model, plan, std::move(devices)));
    return std::unique_ptr<Backend>(std::move(backend));
  };
}

Result<std::unique_ptr<Backend>> make_backend(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan) {
  return backend_over(make_device)(model, plan);
}

}  // namespace quire
