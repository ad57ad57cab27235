// Forward passes on the GPU whose logits come back to the host: for judging models. An engine's steps keep theirs on
// the device. No CUDA headers here: cuda_logits.cu, or none.cpp.
#pragma once

#include "engine/loaded_model.h"

namespace quire {

class CudaLogits {
 public:
  virtual ~CudaLogits() = default;
  // Computes a step whose arrays the host has laid out at `arrays`, in the layout's order, and waits for it: `logits`
  // [logit_rows, V] in the host's memory. The caches keep what it wrote.
  virtual Status forward(const std::byte* arrays, const StepShape& shape, float* logits) = 0;
};

// Kernels that are forced, and who counts what became of them; both outlive the pass. Either may be null.
struct ForcedKernels {
  const KernelChoice* choice = nullptr;
  ForcedCounts* counts = nullptr;
};

// On GPU number `gpu`, with weights and caches of its own for steps of that layout over `blocks` KV blocks of type `kv`
// and one recurrent state, computed as `forward` says. Fails as make_cuda_device does.
Result<std::unique_ptr<CudaLogits>> make_cuda_logits(const std::shared_ptr<const LoadedModel>& model,
                                                     const StepLayout& layout, int32_t blocks, KvCacheType kv, int gpu,
                                                     const ForwardOptions& forward, const ForcedKernels& kernels = {});

}  // namespace quire
