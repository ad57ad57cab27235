#include "ops/gemm/cuda/stream_launch.cuh"

namespace quire::gemm {
template Status launch_stream<TileFormat::kQ4_K>(cudaStream_t, const Problem&, const LaunchChoice&);
}  // namespace quire::gemm
