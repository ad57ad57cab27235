#include "ops/moe/cuda/few.cuh"

namespace quire::moe_cuda {
template Status launch_few<gemm::TileFormat::kMxfp4, gemm::TileFormat::kMxfp4>(cudaStream_t, const FewRows&,
                                                                               const cuda::DeviceLimits&);
}  // namespace quire::moe_cuda
