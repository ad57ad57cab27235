#include "ops/moe/cuda/few.h"

namespace quire::moe_cuda {

namespace {
// Of the next product's weights: more would crowd out what is read meanwhile.
constexpr int64_t kPrefetched = int64_t{16} << 20;
}  // namespace

Result<bool> launch_few_rows(cudaStream_t stream, FewRows& few, const cuda::WeightOrder::Read& next,
                             gemm::TileFormat up, gemm::TileFormat down) {
  using gemm::TileFormat;
  const Routing& r = few.routing;
  if (r.rows > kFewRows || r.experts > kFewExperts || few.barrier == nullptr) return false;
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  few.next = cuda::share_out(next, device.multiprocessors, kPrefetched);
  if (up == TileFormat::kQ4_K && down == TileFormat::kQ6_K)
    return launch_few<TileFormat::kQ4_K, TileFormat::kQ6_K>(stream, few, device);
  if (up != down) return false;
  switch (up) {
    case TileFormat::kBf16:
      return launch_few<TileFormat::kBf16, TileFormat::kBf16>(stream, few, device);
    case TileFormat::kQ8_0:
      return launch_few<TileFormat::kQ8_0, TileFormat::kQ8_0>(stream, few, device);
    case TileFormat::kQ4_K:
      return launch_few<TileFormat::kQ4_K, TileFormat::kQ4_K>(stream, few, device);
    case TileFormat::kQ6_K:
      return launch_few<TileFormat::kQ6_K, TileFormat::kQ6_K>(stream, few, device);
    case TileFormat::kMxfp4:
      return launch_few<TileFormat::kMxfp4, TileFormat::kMxfp4>(stream, few, device);
    case TileFormat::kNvfp4:
      return launch_few<TileFormat::kNvfp4, TileFormat::kNvfp4>(stream, few, device);
    case TileFormat::kBf16x2:
    case TileFormat::kBf16x3:
      return false;
  }
  return false;
}

}  // namespace quire::moe_cuda
