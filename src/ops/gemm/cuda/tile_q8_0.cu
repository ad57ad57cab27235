#include "ops/gemm/cuda/tile_launch.cuh"

namespace quire::gemm {
template Status launch_wgmma_tiles<TileFormat::kQ8_0, TileSums::kOne>(cudaStream_t, const Problem&,
                                                                      const LaunchChoice&);
template Status launch_wgmma_tiles<TileFormat::kQ8_0, TileSums::kTotals>(cudaStream_t, const Problem&,
                                                                         const LaunchChoice&);
template Status launch_wgmma_tiles<TileFormat::kQ8_0, TileSums::kApart>(cudaStream_t, const Problem&,
                                                                        const LaunchChoice&);
template Status launch_mma_tiles<TileFormat::kQ8_0, false>(cudaStream_t, const Problem&, const LaunchChoice&);
template Status launch_mma_tiles<TileFormat::kQ8_0, true>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
