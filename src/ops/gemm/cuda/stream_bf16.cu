#include "ops/gemm/cuda/stream_launch.cuh"

namespace quire::gemm {
template Status launch_stream<TileFormat::kBf16>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
