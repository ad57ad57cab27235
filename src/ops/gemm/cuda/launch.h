// The kernels behind launch_gemm. Each format has objects of its own (instances.cmake), and where tiles have many
// widths each kind of tile: none takes long to compile, and they compile side by side.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/device.h"
#include "core/cuda/launch.h"
#include "ops/gemm/cuda/packed.h"

namespace quire::gemm {

struct Problem;
struct ApartSums;

// What a tile of several K slices does with the sum of each. Every kind is a kernel of its own.
enum class TileSums : uint8_t {
  kOne,     // there is one K slice only
  kTotals,  // adds it up, in registers
  kApart,   // leaves it for another kernel (ApartSums), and may end within a row of K slices
};

struct LaunchChoice {
  cuda::DeviceLimits device;
  int32_t block_rows = 8;  // rows of x in a unit of work (stream and sweep: 8 or 32) or a tile
  bool sliced = false;     // tiles: K slices are work of their own, and their sums are left apart, in `sums`
  bool forced = false;     // sweep: also where it would be slow
  bool dealt = false;      // tiles: work is dealt out evenly; only where the device has wgmma
  float* sums = nullptr;   // sliced: of ApartSums; dealt only: hand_over_floats()
};

// Room for the sums that blocks of threads hand over when tiles of up to `width` rows of x are dealt out evenly, in
// floats: as many for two blocks of narrow tiles on a multiprocessor as for one of tiles twice as wide. Before it lie
// flags, of two warpgroups of each block, 256 bytes of them at a time.
constexpr int32_t hand_over_flags(int32_t multiprocessors) {
  return (4 * multiprocessors + 63) / 64 * 64;
}
constexpr int64_t hand_over_floats(int32_t multiprocessors, int32_t width) {
  return hand_over_flags(multiprocessors) + int64_t{multiprocessors} * 2 * 128 * width;
}

template <TileFormat F>
Status launch_stream(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);
// K slices apart (Product::apart).
template <TileFormat F>
Status launch_k_slices(cudaStream_t stream, const Problem& p, const cuda::DeviceLimits& device);
// False, and nothing launched, where the problem is none for a sweep.
template <TileFormat F>
Result<bool> launch_sweep(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);
// Tiles, where the device has wgmma and where it has not. There kKSlices is for tiles that add up several K slices;
// those that leave sums apart have one each.
template <TileFormat F, TileSums kSums>
Status launch_wgmma_tiles(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);
template <TileFormat F, bool kKSlices>
Status launch_mma_tiles(cudaStream_t stream, const Problem& p, const LaunchChoice& choice);

// y = epilogue(sum of the K slices' sums, in ascending order). `unit`: what the decoder's numbers are to be multiplied
// by (decode.cuh).
Status launch_add_k_slices(cudaStream_t stream, const Problem& p, const ApartSums& sums, float unit);
// Zeros.
Status launch_clear(cudaStream_t stream, uint32_t* words, int32_t count);

}  // namespace quire::gemm
