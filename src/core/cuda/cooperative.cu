#include "core/cuda/cooperative.h"

#include <atomic>
#include <map>
#include <mutex>

#include "core/cuda/dependent_launch.cuh"

namespace quire::cuda {
namespace {

std::atomic<bool> allowed{true};

__global__ void nothing() {
  begin_kernel();
}

// An ordinary kernel, then one with both attributes.
cudaError_t launch_both(cudaStream_t stream) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = stream;
  config.attrs = attributes.data();
  for (const unsigned count : {1u, 2u}) {
    config.numAttrs = count;
    if (const cudaError_t code = cudaLaunchKernelEx(&config, nothing); code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t launch_in_graph(cudaStream_t stream) {
  cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (code != cudaSuccess) return code;
  code = launch_both(stream);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  if (const cudaError_t ended = cudaStreamEndCapture(stream, &graph); code == cudaSuccess) code = ended;
  if (code == cudaSuccess) code = cudaGraphInstantiate(&made, graph, 0);
  if (code == cudaSuccess) code = cudaGraphLaunch(made, stream);
  if (code == cudaSuccess) code = cudaStreamSynchronize(stream);
  if (made != nullptr) cudaGraphExecDestroy(made);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return code;
}

bool try_both() {
  cudaStream_t stream = nullptr;
  cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (code == cudaSuccess) code = launch_both(stream);
  if (code == cudaSuccess) code = cudaStreamSynchronize(stream);
  if (code == cudaSuccess) code = launch_in_graph(stream);
  if (stream != nullptr) cudaStreamDestroy(stream);
  (void)cudaGetLastError();  // a refusal is no reason for the next launch to fail
  return code == cudaSuccess;
}

}  // namespace

bool cooperative_may_be_dependent() {
  static std::mutex mutex;
  static std::map<int, bool> known;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const std::scoped_lock lock(mutex);
  const auto [at, is_new] = known.try_emplace(device, false);
  if (is_new) {
    const auto limits = device_limits();
    at->second = limits.ok() && limits->dependent_launch && try_both();
  }
  return at->second;
}

void allow_cooperative(bool may) {
  allowed.store(may, std::memory_order_relaxed);
}
bool cooperative_is_allowed() {
  return allowed.load(std::memory_order_relaxed);
}

Status check_room_for_grid(std::string_view what, const void* kernel, dim3 grid, int threads, int64_t shared_bytes,
                           const DeviceLimits& device) {
  int of_one = 0;
  QUIRE_CHECKED(
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, kernel, threads, static_cast<size_t>(shared_bytes)),
            what));
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z, room = int64_t{of_one} * device.multiprocessors;
  if (blocks <= room) return {};
  return Error{Fault::kBug,
               fmt::format("{}: {} blocks that wait for each other, and {} find room", what, blocks, room)};
}

}  // namespace quire::cuda
