#include "ops/moe/cuda/few.cuh"

namespace quire::moe_cuda {
template Result<bool> launch_few<gemm::TileFormat::kQ6_K, gemm::TileFormat::kQ6_K>(cudaStream_t, FewRows&,
                                                                                   const cuda::DeviceLimits&);
}  // namespace quire::moe_cuda
