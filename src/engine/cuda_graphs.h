// Steps of generated tokens as CUDA graphs. Whole ones without drafts are captured when a backend is made; those with
// drafts or masks, of which there are many kinds, when such a step comes for the first time.
#pragma once

#include <functional>
#include <map>

#include "core/cuda/check.h"
#include "engine/graph_sizes.h"

namespace quire {

class CudaGraphs {
 public:
  // Enqueues such a step; an error is an operator's that cannot compute it.
  using Launch = std::function<Status(const GraphSize&)>;

  CudaGraphs() = default;
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;
  ~CudaGraphs();

  // Makes a graph of what `launch` enqueues and drops it: whether the driver and all operators take it. How many
  // kernels it is made of.
  static Result<int64_t> rehearse(cudaStream_t stream, const std::function<Status()>& launch);
  // Memory of the device that so many graphs of so many kernels may take.
  static int64_t estimated_bytes(int64_t graphs, int64_t kernels);

  // One after the other. If one fails, that one and all behind it are missing, and an error says why: such steps
  // launch their kernels.
  Status capture(cudaStream_t stream, std::span<const GraphSize> sizes, const Launch& launch);
  // Of a step with drafts or masks: captured now, if it is not and there are fewer than kMostOnDemand of them. Null:
  // such a step launches its kernels; the log says why.
  static constexpr int64_t kMostOnDemand = 64;
  cudaGraphExec_t find_or_capture(cudaStream_t stream, const GraphSize& size, const Launch& launch);
  // Null: not captured.
  cudaGraphExec_t find(const GraphSize& size) const;
  int64_t count() const { return static_cast<int64_t>(graphs_.size()); }

 private:
  std::map<GraphSize, cudaGraphExec_t> graphs_;
  int64_t on_demand_ = 0;  // of them; kMostOnDemand once one could not be captured
};

}  // namespace quire
