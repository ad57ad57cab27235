// Blocks and recurrent states between a GPU's caches and the host's memory, on a stream of their own: while the step
// before is computed they move, as far as they do not touch what it does.
#pragma once

#include <span>

#include "engine/compute_device.h"
#include "ops/cuda/context.h"

namespace quire {

class CudaMoves {
 public:
  CudaMoves() = default;
  CudaMoves(const CudaMoves&) = delete;
  CudaMoves& operator=(const CudaMoves&) = delete;
  ~CudaMoves();
  Status create();  // of the current device
  // Enqueues them, in this order, and lets what follows in the context's stream wait for them. From the first one on
  // that is delayed they wait for `before_end`, the event that ends the step before. Of steps before that one none is
  // under way.
  void enqueue(cuda::Context& context, std::span<const DeviceMove> moves, cudaEvent_t before_end);

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
};

// Blocks and states between a GPU's caches and a file, which come and go while no step is under way: on the stream,
// waited for. The host's side is pageable; they pass through pinned memory, which is made when it is needed.
class CudaFileCopies {
 public:
  Status out(cudaStream_t stream, std::span<std::byte> to, std::span<const std::byte* const> from);
  Status in(cudaStream_t stream, std::span<std::byte* const> to, std::span<const std::byte> from);

 private:
  Status bounce_for(size_t bytes);
  cuda::Memory bounce_;
};

}  // namespace quire
