#include "ops/gemm/cuda/tile_launch.cuh"

namespace quire::gemm {
template Status launch_mma_tiles<TileFormat::kFp8, false>(cudaStream_t, const Problem&, const LaunchChoice&);
template Status launch_mma_tiles<TileFormat::kFp8, true>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
