#include "ops/gemm/cuda/tile_launch.cuh"

namespace quire::gemm {
template Status launch_wgmma_tiles<TileFormat::kBf16x2, TileSums::kOne>(cudaStream_t, const Problem&,
                                                                        const LaunchChoice&);
template Status launch_wgmma_tiles<TileFormat::kBf16x2, TileSums::kTotals>(cudaStream_t, const Problem&,
                                                                           const LaunchChoice&);
template Status launch_wgmma_tiles<TileFormat::kBf16x2, TileSums::kApart>(cudaStream_t, const Problem&,
                                                                          const LaunchChoice&);
template Status launch_mma_tiles<TileFormat::kBf16x2, false>(cudaStream_t, const Problem&, const LaunchChoice&);
template Status launch_mma_tiles<TileFormat::kBf16x2, true>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
