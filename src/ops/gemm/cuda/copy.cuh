// Copies from global to shared memory that one warp asks for and a barrier counts: by the bulk engine from sm_90 on,
// one instruction for a run of bytes; by cp.async before.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/cuda/target.cuh"

namespace quire::gemm {

// ---- mbarriers

__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared::cta.b64 state, [%0];\n}" : : "r"(barrier) : "memory");
}
// Arrives when all copies that this thread has asked for by cp.async are done.
__device__ inline void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}
// Waits until the phase of this parity has completed.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0)
    if constexpr (cuda::kForSm90)
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, "
          "p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
    else
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, "
          "p;\n}"
          : "=r"(done)
          : "r"(barrier), "r"(parity)
          : "memory");
}

// From sm_90 on. Arrives, and lets the phase wait for as many bytes of bulk copies.
__device__ inline void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// A box of a matrix (core/cuda/tensor_map.h) from (row, col) on.
__device__ inline void copy_box(uint32_t to, const CUtensorMap* map, int32_t col, int32_t row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];"
      :
      : "r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier)
      : "memory");
}

// ---- cp.async. Without a memory clobber: what is written is read after a barrier only.

__device__ inline void copy_async_16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(valid ? 16 : 0));
}
// What this thread has asked for since the last time is a group; waits until at most kPending groups are under way.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

// ---- A warp's copies to one barrier: expect_copies, then any number of copy_run and copy_rows, then end_copies. All
// lanes call all of them, with the same arguments but where it is said. Pointers and sizes are multiples of 16 bytes.

// Arrivals that a barrier of copies is initialised with.
inline constexpr int kCopyArrivals = cuda::kForSm90 ? 1 : 32;

__device__ inline void expect_copies(uint32_t barrier, int lane, int bytes) {
  if constexpr (cuda::kForSm90) {
    if (lane == 0) barrier_expect(barrier, bytes);
  }
}
__device__ inline void copy_run(uint32_t to, const uint8_t* from, int bytes, uint32_t barrier, int lane) {
  if constexpr (cuda::kForSm90) {
    if (lane == 0) copy_bulk(to, from, bytes, barrier);
  } else {
    for (int i = lane * 16; i < bytes; i += 512) copy_async_16(to + i, from + i, true);
  }
}
// Rows of `bytes` each, `pitch` apart in shared memory. `from` and `mine` are the lane's own: where its row lies, and
// whether it has one (rows are those of the first `count` lanes).
__device__ inline void copy_rows(uint32_t to, int pitch, const void* from, bool mine, int bytes, uint32_t barrier,
                                 int lane, int count) {
  if constexpr (cuda::kForSm90) {
    if (mine) copy_bulk(to + lane * pitch, from, bytes, barrier);
  } else {
    const auto address = reinterpret_cast<uint64_t>(from);
    for (int row = 0; row < count; ++row) {
      const auto* own = reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, address, row));
      for (int i = lane * 16; i < bytes; i += 512) copy_async_16(to + row * pitch + i, own + i, true);
    }
  }
}
__device__ inline void end_copies(uint32_t barrier) {
  if constexpr (!cuda::kForSm90) barrier_arrive_after_copies(barrier);
}

// Before a warp ends whose copies others wait for.
__device__ inline void finish_copies() {
  if constexpr (!cuda::kForSm90) asm volatile("cp.async.wait_all;" : : : "memory");
}

// What this thread wrote to shared memory, barriers included, comes before the bulk engine's and wgmma's accesses.
__device__ inline void order_before_copies() {
  if constexpr (cuda::kForSm90) asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

}  // namespace quire::gemm
