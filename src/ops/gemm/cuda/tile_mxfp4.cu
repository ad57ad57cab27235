#include "ops/gemm/cuda/tile_launch.cuh"

namespace quire::gemm {
template Status launch_wgmma_tiles<TileFormat::kMxfp4, TileSums::kOne>(cudaStream_t, const Problem&,
                                                                       const LaunchChoice&);
}  // namespace quire::gemm
