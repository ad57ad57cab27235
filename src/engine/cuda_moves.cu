#include "engine/cuda_moves.h"

#include <algorithm>

namespace quire {

CudaMoves::~CudaMoves() {
  if (done_ != nullptr) cudaEventDestroy(done_);
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

Status CudaMoves::create(int64_t bytes) {
  QUIRE_CHECKED(cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
  QUIRE_CHECKED(cuda::check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "creating an event"));
  QUIRE_TRY(pages_, cuda::Memory::create(cuda::Memory::Where::kPinned, bytes,
                                         "what leaves the caches (--swap-space, --kv-offloading-size)"));
  return {};
}

void CudaMoves::enqueue(cuda::Context& context, const Moves& moves) {
  if (moves.outs.empty() && moves.ins.empty()) return;
  const auto keep = [&](cudaError_t code, std::string_view what) { context.keep(cuda::check(code, what)); };
  const CacheViews& cache = moves.cache;
  const int64_t block = *cache.shape().block_bytes(), state = *cache.shape().state_bytes();
  const auto copy = [&](const MoveBytes& m, cudaMemcpyKind kind) {
    std::byte* const device = (m.state ? cache.slots() : cache.blocks()).bytes_at(0) + m.device_offset;
    std::byte* const host = pages_.data() + m.host_offset;
    const bool out = kind == cudaMemcpyDeviceToHost;
    keep(cudaMemcpyAsync(out ? host : device, out ? device : host, static_cast<size_t>(m.count), kind, stream_),
         "moving what leaves the caches");
  };
  bool waits = false;
  const auto wait_if = [&](bool delayed) {
    if (!delayed || waits) return;
    waits = true;
    keep(cudaStreamWaitEvent(stream_, moves.before_end, 0), "waiting for a step");
  };
  // What follows piece by piece on both sides is one copy: a state mostly is.
  const auto all = [&](std::span<const HostMove> list, cudaMemcpyKind kind) {
    for (size_t i = 0; i < list.size();) {
      MoveBytes m = bytes_of(list[i], block, state);
      const auto delayed = [&](const HostMove& move) {
        return kind == cudaMemcpyDeviceToHost ? moves.before.delays_out(move) : moves.before.delays_in(move);
      };
      bool late = delayed(list[i]);
      for (++i; i < list.size(); ++i) {
        const MoveBytes next = bytes_of(list[i], block, state);
        if (next.state != m.state || next.device_offset != m.device_offset + m.count ||
            next.host_offset != m.host_offset + m.count)
          break;
        m.count += next.count;
        late |= delayed(list[i]);
      }
      wait_if(late);
      copy(m, kind);
    }
  };
  all(moves.outs, cudaMemcpyDeviceToHost);
  all(moves.ins, cudaMemcpyHostToDevice);
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
