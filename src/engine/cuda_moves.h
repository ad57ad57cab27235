// Blocks and recurrent states between a GPU's caches and the host's memory, on a stream of their own: while the step
// before is computed they move, as far as they do not touch what it does.
#pragma once

#include <span>

#include "engine/compute_step.h"
#include "engine/step_use.h"
#include "ops/cuda/context.h"

namespace quire {

class CudaMoves {
 public:
  CudaMoves() = default;
  CudaMoves(const CudaMoves&) = delete;
  CudaMoves& operator=(const CudaMoves&) = delete;
  ~CudaMoves();
  // Of the current device. bytes: pinned memory of the host, for its pages.
  Status create(int64_t bytes);
  // That memory: while no step is under way, nothing is on its way there or from there.
  std::byte* pages() const { return pages_.data(); }

  // What a step moves, in the order in which it is carried out.
  struct Moves {
    std::span<const HostMove> outs, ins;
    const CacheViews& cache;
    // What the step before does, and the event that ends it. Of steps before that one none is under way.
    const StepUse& before;
    cudaEvent_t before_end = nullptr;
  };
  // Enqueues them, and lets what follows in the context's stream wait for them. From the first move on that the step
  // before concerns they wait for its end.
  void enqueue(cuda::Context& context, const Moves& moves);

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
  cuda::Memory pages_;
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
