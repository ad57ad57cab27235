#include "ops/gemm/cuda/tile_launch.cuh"

namespace quire::gemm {
template Status launch_wgmma_tiles<TileFormat::kQ4_K, TileSums::kOne>(cudaStream_t, const Problem&,
                                                                      const LaunchChoice&);
template Status launch_wgmma_tiles<TileFormat::kQ4_K, TileSums::kTotals>(cudaStream_t, const Problem&,
                                                                         const LaunchChoice&);
template Status launch_wgmma_tiles<TileFormat::kQ4_K, TileSums::kApart>(cudaStream_t, const Problem&,
                                                                        const LaunchChoice&);
template Status launch_mma_tiles<TileFormat::kQ4_K, false>(cudaStream_t, const Problem&, const LaunchChoice&);
template Status launch_mma_tiles<TileFormat::kQ4_K, true>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
