// Vision towers on the GPU: beside the CPU, and images bit for bit alone and in batches.
#include <cmath>

#include "cuda/vision_support.h"

namespace quire::cuda_test {
namespace {

using test::OpenTower;
using test::TinyTower;
using test::TowerFolder;
using test::TowerInput;
using test::TowerResult;

// The largest difference and the root of the mean of squares, as parts of the latter of what is expected.
void expect_close(const std::vector<float>& got, const std::vector<float>& want, double largest, double rms,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double size = 0, sum = 0, most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    most = std::isnan(d) ? INFINITY : std::max(most, d);
    sum += d * d;
    size += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  if (got.empty()) return;
  const double scale = std::sqrt(size / static_cast<double>(want.size()));
  EXPECT_LE(most / scale, largest) << what;
  EXPECT_LE(std::sqrt(sum / size), rms) << what;
  std::printf("%s: largest difference %.4f, root of mean squares %.5f\n", what.c_str(), most / scale,
              std::sqrt(sum / size));
}

void expect_image(GpuTower& gpu, const TinyTower& t, size_t image, const TowerResult& all) {
  const VisionBatch batch = std::move(VisionBatch::make(gpu.tower().config(), t.grids)).value();
  const TowerResult alone = gpu.run(TowerInput(t, image, 1));
  const int64_t first = batch.first_token(image), count = batch.first_token(image + 1) - first;
  const auto same = [&](const std::vector<float>& one, int64_t from, const std::vector<float>& of, int64_t level) {
    return std::memcmp(one.data() + from * count * t.out, of.data() + (level * batch.tokens() + first) * t.out,
                       static_cast<size_t>(count * t.out) * sizeof(float)) == 0;
  };
  EXPECT_TRUE(same(alone.rows, 0, all.rows, 0)) << t.name << ", image " << image;
  for (int64_t level = 0; level < std::ssize(t.deepstack); ++level)
    EXPECT_TRUE(same(alone.deepstack, level, all.deepstack, level))
        << t.name << ", image " << image << ", level " << level;
}

// `largest` and `rms`: the noise of bf16 on the CPU's side and here.
void check_tower(const TinyTower& t, double largest, double rms, DType type = DType::kBF16) {
  const TowerFolder folder(t, type);
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  GpuTower gpu(*open);
  const TowerInput in(t);
  const TowerResult got = gpu.run(in), want = run_tower(*open, in, test::cpu_machine(), 8);
  expect_close(got.rows, want.rows, largest, rms, t.name + " rows");
  expect_close(got.deepstack, want.deepstack, largest, rms, t.name + " deepstack");
  EXPECT_EQ(gpu.run(in), got) << "a second time";
  for (size_t i = 0; i < t.grids.size(); ++i) expect_image(gpu, t, i, got);
}

TEST(CudaVision, TowersComputeWhatTheCpuDoes) {
  for (const TinyTower& t : test::tiny_towers()) check_tower(t, 0.1, 0.015);
}

TEST(CudaVision, TakesWeightsOfHalfAndFullPrecision) {
  for (const DType type : {DType::kF16, DType::kF32})
    for (const TinyTower& t : test::tiny_towers()) check_tower(t, 0.1, 0.015, type);
}

// The shapes of large models' towers, in two blocks.
TEST(CudaVision, TakesLargeTowers) {
  TinyTower t = test::tiny_tower("vision-qwen35");
  t.name = "large";
  t.width = 1152;
  t.heads = 16;
  t.ffn = 4304;
  t.positions = 2304;
  t.out = 2560;
  t.grids = {{1, 2, 2}, {1, 48, 48}, {1, 48, 48}, {1, 8, 6}};
  for (const DType type : {DType::kBF16, DType::kF16}) check_tower(t, 0.1, 0.015, type);
}

}  // namespace
}  // namespace quire::cuda_test
