// Vision towers beside transformers: small random ones of every family, from a folder and from an mmproj file.
#include <gmock/gmock.h>

#include <cmath>

#include "core/cpu.h"
#include "image/spec.h"
#include "vision/tower_support.h"

namespace quire {
namespace {

using test::cpu_machine;
using test::OpenTower;
using test::reference_machine;
using test::run_tower;
using test::TinyTower;
using test::TowerFolder;
using test::TowerInput;
using test::TowerResult;

class Towers : public testing::TestWithParam<TinyTower> {};

INSTANTIATE_TEST_SUITE_P(All, Towers, testing::ValuesIn(test::tiny_towers()),
                         [](const auto& tower) { return tower.param.name.substr(tower.param.name.find('-') + 1); });

TEST_P(Towers, HoldTheWeightsOfTheGoldenRun) {
  const nlohmann::json golden = GetParam().golden();
  EXPECT_EQ(fmt::format("{:016x}", test::fnv1a64(GetParam().hf_tensors())), golden.at("weights_fnv1a64"));
  std::vector<ImageGrid> grids;
  for (const auto& g : golden.at("grids")) grids.push_back({g[0], g[1], g[2]});
  EXPECT_EQ(grids, GetParam().grids);
}

// The largest difference to the golden run, and the root of the mean of squares, both as parts of the latter of what
// is expected.
struct Distance {
  double largest = 0, rms = 0;
};
Distance distance(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double size = 0, sum = 0, largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    largest = std::isnan(d) ? INFINITY : std::max(largest, d);
    sum += d * d;
    size += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  const double rms = std::sqrt(size / static_cast<double>(want.size()));
  return {largest / rms, std::sqrt(sum / size)};
}

void expect_golden(const TinyTower& t, const TowerResult& got, double largest, double rms, const std::string& what) {
  const nlohmann::json golden = t.golden();
  std::vector<std::pair<std::string, std::pair<std::vector<float>, std::vector<float>>>> parts;
  parts.push_back({"rows", {got.rows, golden.at("rows").get<std::vector<float>>()}});
  if (!t.deepstack.empty()) {
    std::vector<float> levels;
    for (const auto& level : golden.at("deepstack"))
      for (const float x : level.get<std::vector<float>>()) levels.push_back(x);
    parts.push_back({"deepstack", {got.deepstack, levels}});
  }
  for (const auto& [name, both] : parts) {
    const Distance d = distance(both.first, both.second);
    EXPECT_LE(d.largest, largest) << what << " " << name;
    EXPECT_LE(d.rms, rms) << what << " " << name;
  }
}

TEST_P(Towers, ComputeWhatTransformersDoes) {
  const TowerFolder folder(GetParam());
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  expect_golden(GetParam(), run_tower(*open, TowerInput(GetParam()), reference_machine()), 1e-4, 1e-5, "reference");
}

// Each level of this CPU: the noise of bf16 in two or three blocks.
TEST_P(Towers, StayWithinTheNoiseOfBf16) {
  const TowerFolder folder(GetParam());
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  Machine machine = cpu_machine();
  expect_golden(GetParam(), run_tower(*open, TowerInput(GetParam()), machine), 0.1, 0.015, "all features");
  machine.cpu.amx_bf16 = false;
  expect_golden(GetParam(), run_tower(*open, TowerInput(GetParam()), machine), 0.1, 0.015, "without AMX");
  machine.cpu.avx512 = machine.cpu.avx512_bf16 = false;
  expect_golden(GetParam(), run_tower(*open, TowerInput(GetParam()), machine), 0.1, 0.015, "without AVX-512");
}

// Of one image alone: the rows that it has among all.
void expect_image(const TinyTower& t, const OpenTower& open, size_t image, const TowerResult& all, Machine machine) {
  const VisionBatch batch = std::move(VisionBatch::make(open.tower->config(), t.grids)).value();
  const TowerResult alone = run_tower(*open, TowerInput(t, image, 1), machine);
  const int64_t first = batch.first_token(image), count = batch.first_token(image + 1) - first;
  const auto rows_of = [&](const std::vector<float>& of, int64_t level) {
    const auto* from = of.data() + (level * batch.tokens() + first) * t.out;
    return std::vector<float>(from, from + count * t.out);
  };
  EXPECT_EQ(alone.rows, rows_of(all.rows, 0)) << "image " << image;
  for (int64_t level = 0; level < std::ssize(t.deepstack); ++level)
    EXPECT_EQ(std::vector<float>(alone.deepstack.begin() + level * count * t.out,
                                 alone.deepstack.begin() + (level + 1) * count * t.out),
              rows_of(all.deepstack, level))
        << "image " << image;
}

TEST_P(Towers, GiveAnImageTheSameBitsInAnyBatch) {
  const TowerFolder folder(GetParam());
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  for (const Machine& machine : {cpu_machine(), reference_machine()}) {
    const TowerResult all = run_tower(*open, TowerInput(GetParam()), machine);
    for (size_t i = 0; i < GetParam().grids.size(); ++i) expect_image(GetParam(), open, i, all, machine);
  }
}

TEST_P(Towers, GiveTheSameBitsOnAnyNumberOfThreads) {
  const TowerFolder folder(GetParam());
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  const TowerInput in(GetParam());
  const TowerResult one = run_tower(*open, in, cpu_machine(), 1);
  for (const int threads : {2, 3, 7}) EXPECT_EQ(run_tower(*open, in, cpu_machine(), threads), one) << threads;
}

TEST(Tower, TakesImagesOfManySlicesOfRows) {
  // 48 x 48 patches are more than are computed at a time; another image in front shifts all slices.
  TinyTower t = test::tiny_tower("vision-qwen35");
  const TowerFolder folder(t);
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  t.grids = {{1, 2, 2}, {1, 48, 48}};
  const TowerResult both = run_tower(*open, TowerInput(t), cpu_machine());
  expect_image(t, open, 1, both, cpu_machine());
}

TEST(Tower, ComputesNothingOfNoImages) {
  const TowerFolder folder(test::tiny_tower("vision-qwen3vl"));
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  TinyTower none = folder.tiny;
  none.grids.clear();
  EXPECT_TRUE(run_tower(*open, TowerInput(none), cpu_machine()).rows.empty());
}

// A still picture is its bytes; as numbers it is the same, whatever it is rounded to.
TEST(Tower, TakesBytesAsTheirNumbers) {
  const TinyTower t = test::tiny_tower("vision-qwen3vl");
  const TowerFolder folder(t);
  const OpenTower open(convert::open_vision(folder.folder.path()));
  ASSERT_EQ(open.error, "");
  const VisionConfig& c = open.tower->config();
  const std::vector<uint8_t> bytes = t.patch_bytes();
  image::ImageSpec spec{.frames = c.frames};
  std::ranges::copy(c.image_mean, spec.mean.begin());
  std::ranges::copy(c.image_std, spec.deviation.begin());
  const std::vector<float> table = image::colour_table(spec);
  TowerInput numbers(t);
  const int64_t plane = c.patch * c.patch;
  for (int64_t i = 0; i < std::ssize(numbers.patches); ++i) {
    const int64_t run = i / plane / c.frames;
    numbers.patches[static_cast<size_t>(i)] =
        table[static_cast<size_t>(run % 3 * 256 + bytes[static_cast<size_t>(run * plane + i % plane)])];
  }
  TowerInput pictures(t);
  pictures.bytes = bytes;
  for (const Machine& machine : {cpu_machine(), reference_machine()})
    EXPECT_EQ(run_tower(*open, pictures, machine), run_tower(*open, numbers, machine));
}

}  // namespace
}  // namespace quire
