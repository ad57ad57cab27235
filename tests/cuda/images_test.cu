// Prompts with pictures on a GPU: the same bits whatever else happens, and nearly what a CPU computes.
#include "engine/images_rig.h"

namespace quire::test {
namespace {

class CudaImages : public testing::TestWithParam<ImageKind> {};

INSTANTIATE_TEST_SUITE_P(Tiny, CudaImages,
                         testing::Values(ImageKind::kHybrid, ImageKind::kDeepstack, ImageKind::kBothWays,
                                         ImageKind::kWindows, ImageKind::kPerLayer),
                         [](const auto& i) { return image_kind_name(i.param); });

TEST_P(CudaImages, CompanyChunksAndPressureChangeNothing) {
  expect_the_same_bits(Device::kCuda, GetParam());
}

// Log-probabilities of a prompt's tokens, whose pictures a GPU encoded, beside a CPU's.
TEST_P(CudaImages, AreNearlyWhatACpuComputes) {
  const auto of = [](Device device) {
    std::vector<float> all;
    const std::unique_ptr<Engine> engine =
        make_engine(image_model(Device::kCuda, GetParam()), six_sequences_on(device));
    for (const auto& parts : layouts()) {
      Request r = with_images(parts, 1, 0, GetParam());
      r.prompt_logprobs = 0;
      const Heard heard = hear_one(*engine, std::move(r));
      all.insert(all.end(), heard.prompt.logprobs.begin(), heard.prompt.logprobs.end());
    }
    return all;
  };
  const std::vector<float> gpu = of(Device::kCuda), cpu = of(Device::kCpu);
  ASSERT_EQ(gpu.size(), cpu.size());
  ASSERT_GT(gpu.size(), 300u);
  double squares = 0;
  for (size_t i = 0; i < gpu.size(); ++i) squares += std::pow(static_cast<double>(gpu[i] - cpu[i]), 2);
  EXPECT_LT(std::sqrt(squares / static_cast<double>(gpu.size())), golden(GetParam()).at("bf16_rms").get<double>());
}

}  // namespace
}  // namespace quire::test
