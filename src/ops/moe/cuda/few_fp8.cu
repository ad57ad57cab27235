#include "ops/moe/cuda/few.cuh"

namespace quire::moe_cuda {
template Status launch_few<gemm::TileFormat::kFp8, gemm::TileFormat::kFp8>(cudaStream_t, const FewRows&,
                                                                           const cuda::DeviceLimits&);
}  // namespace quire::moe_cuda
