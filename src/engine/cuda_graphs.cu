#include "engine/cuda_graphs.h"

#include <memory>

#include "core/log.h"

namespace quire {
namespace {

struct Destroy {
  void operator()(cudaGraph_t g) const { cudaGraphDestroy(g); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy>;

// What `launch` enqueues, without computing it. The stream is as before, also after an error.
Result<Graph> captured(cudaStream_t stream, const std::function<Status()>& launch) {
  QUIRE_CHECKED(cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a step"));
  const Status launched = launch();
  cudaGraph_t graph = nullptr;
  const Status ended = cuda::check(cudaStreamEndCapture(stream, &graph), "capturing a step");
  Graph owned(graph);
  if (!launched.ok()) return launched.error();
  QUIRE_CHECKED(ended);
  return Result<Graph>(std::move(owned));
}

}  // namespace

CudaGraphs::~CudaGraphs() {
  for (const auto& [size, graph] : graphs_) cudaGraphExecDestroy(graph);
}

Result<int64_t> CudaGraphs::rehearse(cudaStream_t stream, const std::function<Status()>& launch) {
  QUIRE_TRY(const Graph graph, captured(stream, launch));
  size_t nodes = 0;
  QUIRE_CHECKED(cuda::check(cudaGraphGetNodes(graph.get(), nullptr, &nodes), "counting the kernels of a step"));
  return static_cast<int64_t>(nodes);
}

int64_t CudaGraphs::estimated_bytes(int64_t graphs, int64_t kernels) {
  constexpr int64_t kOfKernel = 1536, kOfAll = int64_t{16} << 20;
  return kOfAll + graphs * kernels * kOfKernel;
}

Status CudaGraphs::capture(cudaStream_t stream, std::span<const GraphSize> sizes, const Launch& launch) {
  for (const GraphSize& size : sizes) {
    QUIRE_TRY(const Graph graph, captured(stream, [&] { return launch(size); }));
    cudaGraphExec_t made = nullptr;
    cudaError_t code = cudaGraphInstantiate(&made, graph.get(), 0);
    if (code == cudaSuccess) code = cudaGraphUpload(made, stream);  // or the first launch would allocate
    if (code != cudaSuccess) {
      if (made != nullptr) cudaGraphExecDestroy(made);
      return cuda::check(code, fmt::format("a graph of {} sequences", size.sequences));
    }
    graphs_.emplace(size, made);
  }
  return cuda::check(cudaStreamSynchronize(stream), "uploading graphs");
}

cudaGraphExec_t CudaGraphs::find_or_capture(cudaStream_t stream, const GraphSize& size, const Launch& launch) {
  const cudaGraphExec_t found = find(size);
  const bool at_first = size.each == 1 && size.part == StepPart::kAll;
  if (found != nullptr || at_first || on_demand_ >= kMostOnDemand) return found;
  ++on_demand_;
  if (const Status done = capture(stream, {&size, 1}, launch); !done.ok()) {
    on_demand_ = kMostOnDemand;
    log_warning(
        fmt::format("a step with drafts or masks is not captured ({}): such steps launch their kernels one by one",
                    done.error().message));
  }
  return find(size);
}

cudaGraphExec_t CudaGraphs::find(const GraphSize& size) const {
  const auto found = graphs_.find(size);
  return found == graphs_.end() ? nullptr : found->second;
}

}  // namespace quire
