// The families of kernels that compute products of packed weights, as entries of the tables of linear and swiglu_mlp.
// No CUDA headers.
#pragma once

#include <array>

#include "ops/op.h"

namespace quire::gemm {

enum class Path : uint8_t {
  kAuto,
  kStream,  // mma.sync, a warp for 16 rows: few rows of tokens
  kSweep,   // also mma.sync: up to 32 rows, dense weights with many columns
  kTile,    // wgmma where the code is for sm_90a, else mma.sync
  kSliced,  // the same with tiles of one K slice each, whose sums another kernel adds: weights with few rows
  kDealt,   // tiles whose columns are dealt out evenly to all multiprocessors; kTile where there is no wgmma
};

// The table of all families, from K<path>::fits(m, args), prefers(m, args) and launch(ctx, args).
template <class Args, template <Path> class K>
inline constexpr std::array<Kernel<Args>, 7> kFamilies = {{
    {"cuda_sweep", K<Path::kSweep>::fits, K<Path::kSweep>::launch, GpuLevel::kMma, K<Path::kSweep>::prefers,
     "up to 32 rows of x"},
    {"cuda_sliced_wgmma", K<Path::kSliced>::fits, K<Path::kSliced>::launch, GpuLevel::kWgmma, K<Path::kSliced>::prefers,
     "weights of few rows and many columns, up to 512 rows of x"},
    {"cuda_sliced_mma", K<Path::kSliced>::fits, K<Path::kSliced>::launch, GpuLevel::kNoWgmma, K<Path::kSliced>::prefers,
     "weights of few rows and many columns, up to 512 rows of x"},
    {"cuda_dealt", K<Path::kDealt>::fits, K<Path::kDealt>::launch, GpuLevel::kWgmma, K<Path::kDealt>::prefers,
     "compute capability 9.0"},
    {"cuda_tiles_wgmma", K<Path::kTile>::fits, K<Path::kTile>::launch, GpuLevel::kWgmma, K<Path::kTile>::prefers,
     "compute capability 9.0"},
    {"cuda_tiles_mma", K<Path::kTile>::fits, K<Path::kTile>::launch, GpuLevel::kNoWgmma, K<Path::kTile>::prefers,
     "other cards"},
    {"cuda_stream", K<Path::kStream>::fits, K<Path::kStream>::launch, GpuLevel::kMma, K<Path::kStream>::prefers,
     "bf16, a multiple of 8 columns, aligned rows of x"},
}};

}  // namespace quire::gemm
