#include "ops/gemm/cuda/tile_launch.cuh"

namespace quire::gemm {
template Status launch_tile<TileFormat::kBf16x3>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
