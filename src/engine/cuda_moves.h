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

}  // namespace quire
