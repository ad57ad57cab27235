// Prompts with pictures on a GPU: what transformers computes, and the same bits whatever else happens.
#include "engine/images_rig.h"

namespace quire::test {
namespace {

TEST(CudaImages, IsNoFurtherOffThanTransformersInBf16) {
  const Difference d = compare(Device::kCuda);
  EXPECT_LT(std::sqrt(d.squares / static_cast<double>(d.tokens)), golden().at("bf16_rms").get<double>());
}

TEST(CudaImages, CompanyChunksAndPressureChangeNothing) {
  expect_the_same_bits(Device::kCuda);
}

}  // namespace
}  // namespace quire::test
