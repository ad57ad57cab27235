#include "engine/cuda_moves.h"

#include <algorithm>

namespace quire {

CudaMoves::~CudaMoves() {
  if (done_ != nullptr) cudaEventDestroy(done_);
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

Status CudaMoves::create() {
  QUIRE_CHECKED(cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
  return cuda::check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "creating an event");
}

void CudaMoves::enqueue(cuda::Context& context, std::span<const DeviceMove> moves, cudaEvent_t before_end) {
  if (moves.empty()) return;
  const auto keep = [&](cudaError_t code, std::string_view what) { context.keep(cuda::check(code, what)); };
  bool waits = false;
  for (const DeviceMove& m : moves) {
    if (m.delayed && !waits && before_end != nullptr) {
      waits = true;
      keep(cudaStreamWaitEvent(stream_, before_end, 0), "waiting for a step");
    }
    keep(cudaMemcpyAsync(m.out ? m.host : m.device, m.out ? m.device : m.host, static_cast<size_t>(m.bytes),
                         m.out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, stream_),
         "moving what leaves the caches");
  }
  keep(cudaEventRecord(done_, stream_), "recording an event");
  keep(cudaStreamWaitEvent(context.stream, done_, 0), "waiting for what is moved");
}

// Pinned, so that copies run at the speed of the bus.
Status CudaFileCopies::bounce_for(size_t bytes) {
  if (bounce_.bytes() >= static_cast<int64_t>(bytes)) return {};
  QUIRE_TRY(bounce_, cuda::Memory::create(cuda::Memory::Where::kPinned, static_cast<int64_t>(bytes),
                                          "blocks and states on their way to or from a file"));
  return {};
}

Status CudaFileCopies::out(cudaStream_t stream, std::span<std::byte> to, std::span<const std::byte* const> from) {
  if (to.empty()) return {};
  QUIRE_CHECKED(bounce_for(to.size()));
  const size_t each = to.size() / from.size();
  for (size_t i = 0; i < from.size(); ++i)
    QUIRE_CHECKED(cuda::check(cudaMemcpyAsync(bounce_.data() + i * each, from[i], each, cudaMemcpyDeviceToHost, stream),
                              "reading the caches"));
  QUIRE_CHECKED(cuda::check(cudaStreamSynchronize(stream), "reading the caches"));
  std::copy_n(bounce_.data(), to.size(), to.data());
  return {};
}

Status CudaFileCopies::in(cudaStream_t stream, std::span<std::byte* const> to, std::span<const std::byte> from) {
  if (from.empty()) return {};
  QUIRE_CHECKED(bounce_for(from.size()));
  std::copy_n(from.data(), from.size(), bounce_.data());
  const size_t each = from.size() / to.size();
  for (size_t i = 0; i < to.size(); ++i)
    QUIRE_CHECKED(cuda::check(cudaMemcpyAsync(to[i], bounce_.data() + i * each, each, cudaMemcpyHostToDevice, stream),
                              "writing the caches"));
  return cuda::check(cudaStreamSynchronize(stream), "writing the caches");
}

}  // namespace quire
