#include "ops/moe/cuda/few.h"

#include "ops/gemm/cuda/with_format.h"
#include "ops/moe/cuda/few_plan.cuh"

namespace quire::moe_cuda {
namespace {

using gemm::TileFormat;

// Of the next product's weights: more would crowd out what is read meanwhile.
constexpr int64_t kPrefetched = int64_t{16} << 20;

using Launch = Status (*)(cudaStream_t, const FewRows&, const cuda::DeviceLimits&);

// Null where there is no kernel.
Launch launch_of(TileFormat up, TileFormat down) {
  if (up == TileFormat::kQ4_K && down == TileFormat::kQ6_K) return launch_few<TileFormat::kQ4_K, TileFormat::kQ6_K>;
  if (up != down) return nullptr;
  return gemm::with_format(up, [&]<TileFormat F>() -> Launch {
    if constexpr (F == TileFormat::kBf16x2 || F == TileFormat::kBf16x3)
      return nullptr;
    else
      return launch_few<F, F>;
  });
}

}  // namespace

std::optional<FewPlan> plan_few_rows(const FewRows& few, TileFormat up, TileFormat down,
                                     const cuda::DeviceLimits& device) {
  if (launch_of(up, down) == nullptr) return {};
  return plan_few(few, device, gemm::tile_bytes(up), gemm::tile_bytes(down));
}

Status launch_few_rows(cudaStream_t stream, FewRows& few, const cuda::WeightOrder::Read& next, TileFormat up,
                       TileFormat down, const cuda::DeviceLimits& device) {
  const std::optional<FewPlan> plan = plan_few_rows(few, up, down, device);
  if (!plan) return Error{Fault::kBug, "moe: no kernel for few rows of these weights"};
  few.plan = *plan;
  few.next = cuda::share_out(next, device.multiprocessors, kPrefetched);
  return launch_of(up, down)(stream, few, device);
}

}  // namespace quire::moe_cuda
