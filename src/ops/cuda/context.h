// Where the operators of Device::kCuda enqueue.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "core/cuda/cooperative.h"
#include "core/cuda/grid_barrier.h"
#include "core/cuda/memory.h"
#include "core/cuda/weight_order.h"
#include "ops/op.h"

namespace quire::cuda {

// One for each backend. Scratch memory comes from OpContext::workspace, which then lies on the device.
struct Context : GpuContext {
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  // What is under way ends first, also after an error; there is nobody to tell of another.
  ~Context() {
    if (stream == nullptr) return;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  // On the current device.
  Status create() {
    QUIRE_CHECKED(check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    QUIRE_TRY(barrier_, Memory::create(Memory::Where::kDevice, sizeof(GridBarrier), "a barrier"));
    (void)cooperative_may_be_dependent();  // finds out before anything is captured
    return check(cudaMemset(barrier_.data(), 0, sizeof(GridBarrier)), "clearing a barrier");
  }

  cudaStream_t stream = nullptr;
  // What products read, found out by dry steps.
  WeightOrder weights;
  // No kernel of the step under way writes recurrent states but the one that advances them.
  bool states_at_rest = false;
  // Of the kernels in the stream.
  GridBarrier* barrier() const { return reinterpret_cast<GridBarrier*>(barrier_.data()); }

 private:
  Memory barrier_;
};

// The context that a kernel of a GPU enqueues in.
inline Context& context_of(const OpContext& ctx) {
  return *static_cast<Context*>(ctx.gpu);
}

}  // namespace quire::cuda
