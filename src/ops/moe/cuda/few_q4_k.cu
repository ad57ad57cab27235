#include "ops/moe/cuda/few.cuh"

namespace quire::moe_cuda {
template Status launch_few<gemm::TileFormat::kQ4_K, gemm::TileFormat::kQ4_K>(cudaStream_t, const FewRows&,
                                                                             const cuda::DeviceLimits&);
}  // namespace quire::moe_cuda
