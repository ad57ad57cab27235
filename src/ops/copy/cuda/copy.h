// Copies inside the caches on CUDA, and between a cache and the host's memory: copy-on-write of KV blocks, saving and
// restoring of recurrent states, swapping.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "core/result.h"

namespace quire::cuda {

// pool[dst] = pool[src] for every pair.
//   pool  slots of slot_bytes, slot_stride bytes apart: multiples of 16, 16-byte aligned
//   pairs [count, 2] i32 in device memory: (src, dst); destinations are distinct and no slot is both a source and a
//         destination. A pair with a negative slot is skipped: padding of captured graphs
// Only enqueues; capturable. Bound: memory, twice the bytes.
struct CopySlotsParams {
  void* pool = nullptr;
  int64_t slot_bytes = 0, slot_stride = 0;
  const int32_t* pairs = nullptr;
  int count = 0;
};
Status launch_copy_slots(cudaStream_t stream, const CopySlotsParams& p);

// slots[i] of a pool to or from host + i * slot_bytes, in the order of the stream; host memory is pinned (else the
// copies are not asynchronous) and left alone until they have run. Slots in a row are one copy. `slots` is read before
// the call returns. Bound: the bus.
Status copy_slots_to_host(cudaStream_t stream, const void* pool, int64_t slot_bytes, int64_t slot_stride,
                          std::span<const int32_t> slots, void* host);
Status copy_slots_from_host(cudaStream_t stream, void* pool, int64_t slot_bytes, int64_t slot_stride,
                            std::span<const int32_t> slots, const void* host);

}  // namespace quire::cuda
