#include "ops/copy/cuda/copy.h"

#include <algorithm>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"

namespace quire::cuda {
namespace {

// A block of threads copies 16 KiB: enough in flight, and small blocks still spread a single slot over many processors.
constexpr int kThreads = 256, kPerThread = 4, kPieceBytes = kThreads * kPerThread * 16;

__global__ void __launch_bounds__(kThreads) copy_slots(const __grid_constant__ CopySlotsParams p) {
  // The next kernel is not let in early: kernels read states before they wait, as of a step that has ended.
  wait_for_previous_kernels();
  const int32_t from = p.pairs[2 * blockIdx.y], to = p.pairs[2 * blockIdx.y + 1];
  if (from < 0 || to < 0) return;
  const auto* source = reinterpret_cast<const uint4*>(static_cast<const char*>(p.pool) + from * p.slot_stride);
  auto* target = reinterpret_cast<uint4*>(static_cast<char*>(p.pool) + to * p.slot_stride);
  const int64_t n = p.slot_bytes / 16, first = static_cast<int64_t>(blockIdx.x) * (kPieceBytes / 16) + threadIdx.x;
  uint4 x[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
    if (first + i * kThreads < n) x[i] = source[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
    if (first + i * kThreads < n) target[first + i * kThreads] = x[i];
}

// How many slots from i on follow each other without a gap.
size_t run_length(std::span<const int32_t> slots, size_t i, bool gapless) {
  size_t n = 1;
  while (gapless && i + n < slots.size() && slots[i + n] == slots[i] + static_cast<int32_t>(n)) ++n;
  return n;
}

}  // namespace

Status launch_copy_slots(cudaStream_t stream, const CopySlotsParams& p) {
  constexpr int kMostPairs = 65535;  // of one launch: the grid's second dimension
  for (int done = 0; done < p.count && p.slot_bytes > 0; done += kMostPairs) {
    CopySlotsParams part = p;
    part.pairs = p.pairs + 2 * int64_t{done};
    part.count = std::min(p.count - done, kMostPairs);
    const dim3 grid(static_cast<unsigned>((p.slot_bytes + kPieceBytes - 1) / kPieceBytes),
                    static_cast<unsigned>(part.count));
    QUIRE_CHECKED(launch(stream, "copy_slots", copy_slots, grid, kThreads, 0, part));
  }
  return {};
}

Status copy_slots_to_host(cudaStream_t stream, const void* pool, int64_t slot_bytes, int64_t slot_stride,
                          std::span<const int32_t> slots, void* host) {
  for (size_t i = 0, n = 0; i < slots.size(); i += n) {
    n = run_length(slots, i, slot_bytes == slot_stride);
    QUIRE_CHECKED(check(cudaMemcpyAsync(static_cast<char*>(host) + static_cast<int64_t>(i) * slot_bytes,
                                        static_cast<const char*>(pool) + slots[i] * slot_stride,
                                        n * static_cast<size_t>(slot_bytes), cudaMemcpyDeviceToHost, stream),
                        "copying slots to the host"));
  }
  return {};
}

Status copy_slots_from_host(cudaStream_t stream, void* pool, int64_t slot_bytes, int64_t slot_stride,
                            std::span<const int32_t> slots, const void* host) {
  for (size_t i = 0, n = 0; i < slots.size(); i += n) {
    n = run_length(slots, i, slot_bytes == slot_stride);
    QUIRE_CHECKED(check(cudaMemcpyAsync(static_cast<char*>(pool) + slots[i] * slot_stride,
                                        static_cast<const char*>(host) + static_cast<int64_t>(i) * slot_bytes,
                                        n * static_cast<size_t>(slot_bytes), cudaMemcpyHostToDevice, stream),
                        "copying slots from the host"));
  }
  return {};
}

}  // namespace quire::cuda
