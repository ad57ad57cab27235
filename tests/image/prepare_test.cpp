// Sizes, patches and values, as PIL and transformers have them.
#include "image/prepare.h"

#include <gtest/gtest.h>

#include "image/golden.h"
#include "support/image_values.h"

namespace quire::image::test {
namespace {

int64_t tower_patch(const std::string& config) {
  if (config.starts_with("gemma3")) return 14;
  return 0;
}

ImageSpec spec_of(const std::string& config) {
  auto spec = read_image_spec(golden()["configs"][config], tower_patch(config));
  EXPECT_TRUE(spec.ok()) << config << ": " << spec.error().message;
  return std::move(spec).value();
}

TEST(Resize, HasTheBitsOfPil) {
  int compared = 0;
  for (size_t i = 0; i < golden()["resizes"].size(); ++i, ++compared) {
    const auto& row = golden()["resizes"][i];  // two of each seed: bilinear and bicubic
    const Resample filter = row[4] == "bilinear" ? Resample::kBilinear : Resample::kBicubic;
    const auto to = resize(noise(row[0], row[1], i / 2), row[2], row[3], filter);
    ASSERT_TRUE(to.ok());
    EXPECT_EQ(sha256(to->bytes()), row[5]) << row;
  }
  EXPECT_EQ(compared, 440);
}

TEST(Plan, HasTheSizesOfTransformers) {
  int refused = 0;
  for (const auto& row : golden()["plans"]) {
    const auto plan = plan_image(spec_of(row[0]), row[1], row[2]);
    ASSERT_EQ(plan.ok(), row.size() == 6) << row;
    if (!plan.ok()) {
      EXPECT_EQ(plan.error().fault, Fault::kRequest);
      ++refused;
      continue;
    }
    EXPECT_EQ(plan->width, row[3]) << row;
    EXPECT_EQ(plan->height, row[4]) << row;
    EXPECT_EQ(plan->tokens, row[5]) << row;
  }
  EXPECT_GT(refused, 20);
}

TEST(Prepare, HasTheValuesOfTransformers) {
  for (const auto& [config, rows] : golden()["patches"].items())
    for (const auto& row : rows) {
      std::vector<float> values;
      for (const Crop& crop : views_of(spec_of(config), row[0], row[1])) {
        const auto patches = prepare(noise(row[0], row[1], 1), spec_of(config), crop);
        ASSERT_TRUE(patches.ok()) << patches.error().message;
        EXPECT_EQ(patches->plan.rows, row[2]) << config << row;
        EXPECT_EQ(patches->plan.columns, row[3]) << config << row;
        EXPECT_EQ(patches->plan.tokens, row[4]) << config << row;
        const std::vector<float> more = quire::test::image_values(*patches, spec_of(config));
        values.insert(values.end(), more.begin(), more.end());
      }
      EXPECT_EQ(sha256(std::span<const float>(values)), row[5]) << config << row;
    }
}

TEST(PanAndScan, HasThePiecesOfTransformers) {
  size_t most = 0, none = 0;
  for (const auto& row : golden()["scans"]) {
    ImageSpec spec = spec_of("gemma3");
    spec.pan_and_scan = {.on = true, .min_crop = row[2], .max_crops = row[3], .min_ratio = row[4]};
    const std::vector<Crop> views = views_of(spec, row[0], row[1]);
    ASSERT_FALSE(views.empty());
    EXPECT_TRUE(views[0].whole());
    std::vector<Crop> expected(1);
    for (const auto& piece : row[5]) expected.push_back({piece[0], piece[1], piece[2], piece[3]});
    EXPECT_EQ(views, expected) << row;
    most = std::max(most, views.size());
    none += views.size() == 1;
  }
  EXPECT_GT(most, 5u);
  EXPECT_GT(none, 40u);
}

TEST(PanAndScan, IsOffUnlessItIsAskedFor) {
  EXPECT_EQ(views_of(spec_of("gemma3"), 4000, 1000), std::vector<Crop>(1));
  EXPECT_EQ(views_of(spec_of("gemma3-scans"), 4000, 1000).size(), 4u);
}

// By hand: 4 x 4 patches of one pixel, two by two to a token.
TEST(Prepare, OrdersPatchesByBlocks) {
  Pixels p = std::move(Pixels::make(4, 4)).value();
  for (int i = 0; i < 48; ++i) p.row(0)[i] = static_cast<uint8_t>(i);
  ImageSpec spec;
  spec.size_rule = SizeRule::kFixed;
  spec.width = spec.height = 4;
  spec.patch = 1;
  const auto patches = prepare(p, spec);
  ASSERT_TRUE(patches.ok());
  EXPECT_EQ(patches->plan.tokens, 4);
  const int pixels[] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  std::vector<uint8_t> expected;
  for (const int at : pixels)
    for (int c = 0; c < 3; ++c) expected.push_back(static_cast<uint8_t>(3 * at + c));
  EXPECT_EQ(std::vector<uint8_t>(patches->bytes().begin(), patches->bytes().end()), expected);
}

TEST(Prepare, RefusesShapesThatTheModelRefuses) {
  const auto patches = prepare(noise(1, 201, 1), spec_of("qwen3"));
  ASSERT_FALSE(patches.ok());
  EXPECT_EQ(patches.error().message, "an image of 1 x 201 is too long: one side may be 200 times the other");
  EXPECT_TRUE(prepare(noise(1, 200, 1), spec_of("qwen3")).ok());
}

}  // namespace
}  // namespace quire::image::test
