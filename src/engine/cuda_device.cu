#include "engine/cuda_device.h"

#include <algorithm>

#include "core/log.h"
#include "engine/cuda_device_impl.h"

namespace quire {
namespace {

void free_device(std::span<std::byte> bytes) {
  (void)cudaFree(bytes.data());
}
void free_host(std::span<std::byte> bytes) {
  (void)cudaFreeHost(bytes.data());
}

int64_t graphs_of(const StepCapacity& capacity, const EnginePlan& plan) {
  return plan.graphs ? std::ssize(graph_sizes(capacity)) + CudaGraphs::kMostOnDemand : 0;
}

}  // namespace

CudaDevice::~CudaDevice() {
  CudaDevice::stop();
  for (const cudaEvent_t fence : fences_)
    if (fence != nullptr) cudaEventDestroy(fence);
}

void CudaDevice::stop() {
  use_gpu();
  if (context_.stream != nullptr) cudaStreamSynchronize(context_.stream);
}

Status CudaDevice::create() {
  QUIRE_CHECKED(choose_gpu(*model_, plan_.gpu, plan_.kv_cache));
  QUIRE_CHECKED(check_gpu_options(plan_));
  QUIRE_TRY(machine_, gpu_machine());
  QUIRE_CHECKED(context_.create());
  QUIRE_CHECKED(moves_.create());
  for (cudaEvent_t& fence : fences_) QUIRE_CHECKED(cuda::check(cudaEventCreate(&fence), "creating an event"));
  return {};
}

Result<DeviceMemory> CudaDevice::allocate(Where where, int64_t bytes, std::string_view what) {
  using cuda::Memory;
  use_gpu();
  const bool host = where == Where::kHost;
  QUIRE_TRY(Memory memory, Memory::create(host ? Memory::Where::kPinned : Memory::Where::kDevice, bytes, what));
  if (where == Where::kOwn)
    QUIRE_CHECKED(cuda::check(cudaMemset(memory.data(), 0, static_cast<size_t>(memory.bytes())), "clearing memory"));
  return DeviceMemory(memory.release(), host ? free_host : free_device);
}

Status CudaDevice::place(int64_t) {
  use_gpu();
  const LayerRange layers = plan_.own_layers(model_->model->config());
  QUIRE_TRY(weights_, model_->on_gpu(plan_.threads, plan_.mtp && plan_.is_last_stage(), layers));
  if (plan_.encoder.any() && plan_.is_first_stage()) {
    QUIRE_TRY(tower_, model_->tower_on_gpu(plan_.threads));
  }
  return {};
}

// Operators take scratch memory from a range of the host's addresses, which nobody touches.
Result<int64_t> CudaDevice::measure(const StepShape& shape) {
  return measure([&](const OpContext& ctx) { compute()(ctx, shape, StepPart::kAll); });
}

Result<int64_t> CudaDevice::measure(const Call& work) {
  use_gpu();
  Workspace all;
  context_.dry = true;
  enqueue(work, all);
  context_.dry = false;
  QUIRE_CHECKED(enqueued());
  return all.high_water() + (int64_t{1} << 20);
}

// The driver's own: code of kernels as they are loaded, and the nodes of graphs.
int64_t CudaDevice::overhead_bytes(const StepCapacity& capacity) const {
  constexpr int64_t kOfDriver = int64_t{192} << 20, kKernelsOfLayer = 24;
  return kOfDriver + CudaGraphs::estimated_bytes(graphs_of(capacity, plan_),
                                                 plan_.own_layers(model_->model->config()).count() * kKernelsOfLayer);
}

// What no kernel takes, and a launch that the driver refuses, is found now and not by the first request. Kernels are
// loaded by it, too.
Status CudaDevice::rehearse(std::span<const StepShape> steps) {
  use_gpu();
  for (const StepShape& step : steps) {
    Result<int64_t> kernels = CudaGraphs::rehearse(context_.stream, [&] { return launch(step); });
    if (!kernels.ok()) return request_error("this GPU cannot compute the model: {}", kernels.error().message);
    graph_kernels_ = std::max(graph_kernels_, *kernels);
  }
  log_.forget();
  return {};
}

Result<DeviceRoom> CudaDevice::room(const StepCapacity& capacity) {
  use_gpu();
  QUIRE_TRY(const GpuMemory m, gpu_memory(weight_bytes()));
  const int64_t graphs = CudaGraphs::estimated_bytes(graphs_of(capacity, plan_), graph_kernels_);
  return DeviceRoom{.memory = m,
                    .bytes = (m.bound(plan_.gpu_memory_utilization) - m.used) / plan_.stages_on_gpu() - graphs};
}

// The largest first: if memory ends, those are missing that save least. Without graphs everything is computed as well.
std::string CudaDevice::start(const StepCapacity& capacity) {
  use_gpu();
  capacity_ = capacity;
  if (plan_.graphs) {
    const std::vector<GraphSize> sizes = graph_sizes(capacity);
    const Status done =
        graphs_.capture(context_.stream, sizes, [this](const GraphSize& size) { return capture(size); });
    log_.forget();  // of one that failed
    if (!done.ok())
      log_warning(fmt::format("{} of {} graphs are captured ({}): other steps launch their kernels one by one",
                              graphs_.count(), sizes.size(), done.error().message));
  }
  return fmt::format("{} graphs of up to {} kernels", graphs_.count(), graph_kernels_);
}

void CudaDevice::copy(std::byte* to, const std::byte* from, int64_t bytes, std::string_view what) {
  use_gpu();
  keep(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, context_.stream), what);
}

// Outside of captured launches, and behind those of the step before as far as they must be.
void CudaDevice::move(std::span<const DeviceMove> moves, std::optional<Fence> before) {
  use_gpu();
  moves_.enqueue(context_, moves, before ? fences_[*before] : nullptr);
}

void CudaDevice::mark(Fence fence) {
  use_gpu();
  keep(cudaEventRecord(fences_[fence], context_.stream), "recording an event");
}

void CudaDevice::wait_for(ComputeDevice& other, Fence fence) {
  use_gpu();
  keep(cudaStreamWaitEvent(context_.stream, dynamic_cast<CudaDevice&>(other).fences_[fence], 0),
       "waiting for another GPU");
}

bool CudaDevice::reaches(ComputeDevice& other) {
  const int peer = dynamic_cast<CudaDevice&>(other).plan_.gpu;
  use_gpu();
  int can = 0;
  if (!cuda::check(cudaDeviceCanAccessPeer(&can, plan_.gpu, peer), "asking for peer access").ok() || can == 0)
    return false;
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
  const bool already = enabled == cudaErrorPeerAccessAlreadyEnabled;
  const Status status = cuda::check(enabled, "enabling peer access");  // forgets the error
  if (!status.ok() && !already)
    log_warning(fmt::format("GPU {} does not reach GPU {} directly: {}", plan_.gpu, peer, status.error().message));
  return status.ok() || already;
}

// Null: kernels are launched one by one.
cudaGraphExec_t CudaDevice::graph_of(const GraphSize& size) {
  if (!context_.status.ok()) return nullptr;
  return graphs_.find_or_capture(context_.stream, size, [this](const GraphSize& s) { return capture(s); });
}

// By the graph of such a step, or kernel by kernel if there is none. The sampling of a step with masks, which comes
// when they do, has none.
void CudaDevice::run(const StepShape& shape, const StepShape& padded, StepPart part) {
  use_gpu();
  if (part == StepPart::kSampling) {
    enqueue(padded, *workspace_, part);
    return log_.forget();
  }
  GraphSize size = size_of(padded);
  size.part = part;
  const bool empty = part == StepPart::kBegin && size.passes == 0;
  const cudaGraphExec_t graph = plan_.graphs && replayable(shape) && !empty ? graph_of(size) : nullptr;
  if (graph == nullptr) {
    enqueue(padded, *workspace_, part);
    return log_.computed(padded.rows > padded.decode_rows);
  }
  log_.replayed(size, [&] { enqueue(shape, *workspace_, part, true); });
  keep(cudaGraphLaunch(graph, context_.stream), "replaying a step");
}

Status CudaDevice::capture(const GraphSize& size) {
  QUIRE_CHECKED(launch(shape_of(size, capacity_), size.part));
  log_.captured(size);
  return {};
}

// For captures: an error is what an operator or a launch said.
Status CudaDevice::launch(const StepShape& shape, StepPart part) {
  enqueue(shape, *workspace_, part);
  return enqueued();
}

void CudaDevice::call(const Call& work) {
  use_gpu();
  enqueue(work, *workspace_);
  log_.forget();
}

void CudaDevice::enqueue(const StepShape& shape, Workspace& workspace, StepPart part, bool only_chooses) {
  context_.states_at_rest = shape.slot_copies == 0;
  enqueue([&](const OpContext& ctx) { compute()(ctx, shape, part); }, workspace, only_chooses);
}

void CudaDevice::enqueue(const Call& work, Workspace& workspace, bool only_chooses) {
  context_.weights.begin_step(context_.dry);
  work({.pool = pool_,
        .workspace = workspace,
        .machine = machine_,
        .choice = &plan_.kernels,
        .forced = context_.dry || only_chooses ? nullptr : &forced_,
        .launches = context_.dry ? nullptr : log_.observer(),
        .only_chooses = only_chooses,
        .gpu = &context_});
}

Status CudaDevice::wait(Fence fence, std::string_view what) {
  use_gpu();
  return cuda::check(cudaEventSynchronize(fences_[fence]), fmt::format("the GPU {}", what));
}

Result<double> CudaDevice::seconds(Fence begin, Fence end) {
  float ms = 0;
  QUIRE_CHECKED(cuda::check(cudaEventElapsedTime(&ms, fences_[begin], fences_[end]), "timing a step"));
  return static_cast<double>(ms) * 1e-3;
}

bool CudaDevice::idle() {
  use_gpu();
  const cudaError_t asked = cudaStreamQuery(context_.stream);
  if (asked == cudaErrorNotReady) (void)cudaGetLastError();  // no error, and yet remembered as one
  return asked == cudaSuccess;
}

// What the driver refused before anything ran (a launch's shape, a missing resource) leaves the GPU sound. What a
// kernel did (an illegal address, a trap, an uncorrectable memory error) is told by every later call, and stays until
// the process ends. So the GPU is asked, and no table of codes.
bool CudaDevice::is_sound() {
  use_gpu();
  return cudaStreamSynchronize(context_.stream) == cudaSuccess;
}

Status CudaDevice::read(std::span<std::byte> to, std::span<const std::byte* const> from) {
  use_gpu();
  return file_copies_.out(context_.stream, to, from);
}

Status CudaDevice::write(std::span<std::byte* const> to, std::span<const std::byte> from) {
  use_gpu();
  return file_copies_.in(context_.stream, to, from);
}

Result<std::unique_ptr<ComputeDevice>> make_cuda_device(const std::shared_ptr<const LoadedModel>& model,
                                                        const EnginePlan& plan) {
  auto device = std::make_unique<CudaDevice>(model, plan);
  QUIRE_CHECKED(device->create());
  return std::unique_ptr<ComputeDevice>(std::move(device));
}

}  // namespace quire
