// Copies from global to shared memory that one warp asks for and a barrier counts: by the bulk engine from sm_90 on, one
// instruction for a run of bytes; by cp.async before.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace quire::gemm {

// ---- mbarriers

__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared::cta.b64 state, [%0];\n}"
               :
               : "r"(barrier)
               : "memory");
}
// Arrives when all copies that this thread has asked for by cp.async are done.
__device__ inline void barrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}
// Waits until the phase of this parity has completed.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
#if __CUDA_ARCH__ >= 900
        "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
#else
        "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, "
        "p;\n}"
#endif
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}

// From sm_90 on. Arrives, and lets the phase wait for as many bytes of bulk copies.
__device__ inline void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// A box of a matrix (core/cuda/tensor_map.h) from (row, col) on.
__device__ inline void copy_box(uint32_t to, const CUtensorMap* map, int32_t col, int32_t row,
                                uint32_t barrier) {
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

// ---- A warp's copies to one barrier: expect_copies, then any number of copy_run and copy_rows, then end_copies. All lanes
// call all of them, with the same arguments but where it is said. Pointers and sizes are multiples of 16 bytes.

// Arrivals that a barrier of copies is initialised with.
#ifdef __CUDA_ARCH__
inline constexpr int kCopyArrivals = __CUDA_ARCH__ >= 900 ? 1 : 32;
#else
inline constexpr int kCopyArrivals = 1;
#endif

__device__ inline void expect_copies(uint32_t barrier, int lane, int bytes) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) barrier_expect(barrier, bytes);
#endif
}
__device__ inline void copy_run(uint32_t to, const uint8_t* from, int bytes, uint32_t barrier, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) copy_bulk(to, from, bytes, barrier);
#else
  for (int i = lane * 16; i < bytes; i += 512) copy_async_16(to + i, from + i, true);
#endif
}
// Rows of `bytes` each, `pitch` apart in shared memory. `from` and `mine` are the lane's own: where its row lies, and whether
// it has one (rows are those of the first `count` lanes).
__device__ inline void copy_rows(uint32_t to, int pitch, const void* from, bool mine, int bytes,
                                 uint32_t barrier, int lane, int count) {
#if __CUDA_ARCH__ >= 900
  if (mine) copy_bulk(to + lane * pitch, from, bytes, barrier);
#else
  const auto address = reinterpret_cast<uint64_t>(from);
  for (int row = 0; row < count; ++row) {
    const auto* own = reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, address, row));
    for (int i = lane * 16; i < bytes; i += 512) copy_async_16(to + row * pitch + i, own + i, true);
  }
#endif
}
__device__ inline void end_copies(uint32_t barrier) {
#if __CUDA_ARCH__ < 900
  barrier_arrive_after_copies(barrier);
#endif
}

// What this thread wrote to shared memory, barriers included, comes before the bulk engine's and wgmma's accesses.
__device__ inline void order_before_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
#endif
}

}  // namespace quire::gemm
