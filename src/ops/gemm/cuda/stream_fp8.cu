#include "ops/gemm/cuda/segments_launch.cuh"
#include "ops/gemm/cuda/stream_launch.cuh"
#include "ops/gemm/cuda/sweep_launch.cuh"

namespace quire::gemm {
template Status launch_segments<TileFormat::kFp8>(cudaStream_t, const Problem&, const cuda::DeviceLimits&);
template Status launch_stream<TileFormat::kFp8>(cudaStream_t, const Problem&, const LaunchChoice&);
template Result<bool> launch_sweep<TileFormat::kFp8>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
