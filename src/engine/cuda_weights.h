// Bringing a model's weights to the GPU. Internal to the *.cu files here; CUDA headers stay out.
#pragma once

#include <memory>

#include "model/decoder.h"
#include "vision/tower.h"

namespace quire {

// A model's decoder with its weights on the current GPU: matrices packed into tiles, two at a time where SwiGLU puts
// them together, tables as they are in the file, vectors in float32. Copied tensor by tensor from the mapping
// through pinned memory, and packed on the device.
class CudaWeights {
 public:
  virtual ~CudaWeights() = default;
  virtual const Decoder& decoder() const = 0;
  virtual const Decoder* mtp() const = 0;  // the block for multi-token prediction; null: it was not asked for
  virtual int64_t bytes() const = 0;       // of the device's memory
};

// A vision tower with its weights on the current GPU, brought there in the same way.
class CudaTower {
 public:
  virtual ~CudaTower() = default;
  virtual const VisionTower& tower() const = 0;
  virtual int64_t bytes() const = 0;  // of the device's memory
};
// threads: that read the file; 0: all CPUs, as far as more of them help.
Result<std::unique_ptr<const CudaTower>> place_on_gpu(const VisionTower& mapped, int threads);

}  // namespace quire
