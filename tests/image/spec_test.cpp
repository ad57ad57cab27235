// What files of models say of pictures.
#include "image/spec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "image/golden.h"

namespace quire::image::test {
namespace {

using nlohmann::json;

std::string refusal(const json& config, int64_t tower_patch = 0) {
  const auto spec = read_image_spec(config, tower_patch);
  if (spec.ok()) return "accepted";
  EXPECT_EQ(spec.error().fault, Fault::kModelFile);
  return spec.error().message;
}

json changed(const char* config, const json& patch) {
  json c = golden()["configs"][config];
  c.merge_patch(patch);
  return c;
}

TEST(Spec, ReadsWhatTheFilesSay) {
  const auto qwen = read_image_spec(golden()["configs"]["qwen3"], 16);
  ASSERT_TRUE(qwen.ok());
  EXPECT_EQ(qwen->min_pixels, 65536);
  EXPECT_EQ(qwen->max_pixels, 16777216);
  EXPECT_EQ(qwen->frames, 2);
  EXPECT_EQ(qwen->bytes_per_patch(), 3 * 16 * 16);
  EXPECT_EQ(qwen->mean[1], 0.5);
  const auto gemma = read_image_spec(golden()["configs"]["gemma3"], 14);
  ASSERT_TRUE(gemma.ok());
  EXPECT_EQ(gemma->merge, 4);
  EXPECT_EQ(gemma->resample, Resample::kBilinear);
}

TEST(Spec, IsFoundWithinAProcessorsConfig) {
  const json config = {{"processor_class", "Qwen3VLProcessor"}, {"image_processor", golden()["configs"]["qwen3"]}};
  const auto spec = read_image_spec(config, 16);
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec->patch, 16);
}

TEST(Spec, HasTheDefaultsOfItsClass) {
  const auto spec = read_image_spec({{"image_processor_type", "Qwen2VLImageProcessor"}}, 0);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->patch, 14);
  EXPECT_EQ(spec->min_pixels, 3136);
  EXPECT_EQ(spec->max_pixels, 1003520);
  EXPECT_EQ(spec->mean[0], 0.48145466);
  EXPECT_EQ(refusal(changed("qwen3", {{"size", nullptr}, {"resample", nullptr}, {"do_pad", nullptr}})), "accepted");
}

TEST(Spec, TakesValuesAsTheyAreWhereNothingIsNormalised) {
  const auto spec = read_image_spec(changed("qwen3", {{"do_rescale", false}, {"do_normalize", false}}), 0);
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->scale, 1);
  EXPECT_EQ(spec->mean[0], 0);
  EXPECT_EQ(spec->deviation[2], 1);
}

TEST(Spec, RefusesWhatItDoesNotUnderstand) {
  EXPECT_EQ(refusal(json::array()), "is not an object");
  EXPECT_EQ(refusal(json::object()), "image_processor_type: missing");
  EXPECT_EQ(refusal({{"image_processor", 3}}), "image_processor: is not an object");
  EXPECT_EQ(refusal({{"image_processor_type", "CLIPImageProcessor"}}),
            "image_processor_type: 'CLIPImageProcessor' is no processor that is known here");
  EXPECT_EQ(refusal(changed("qwen3", {{"do_pan_and_scan", true}})),
            "do_pan_and_scan: true is not supported with this processor");
  EXPECT_EQ(refusal(changed("gemma3", {{"do_pan_and_scan", 1}}), 14), "do_pan_and_scan: is not true or false");
  EXPECT_EQ(refusal(changed("gemma3", {{"pan_and_scan_max_num_crops", 65}}), 14),
            "pan_and_scan_max_num_crops: 65 is not between 1 and 64");
  EXPECT_EQ(refusal(changed("gemma3", {{"pan_and_scan_min_crop_size", 0}}), 14),
            "pan_and_scan_min_crop_size: 0 is not between 1 and 65536");
  EXPECT_EQ(refusal(changed("gemma3", {{"pan_and_scan_min_ratio_to_activate", "x"}}), 14),
            "pan_and_scan_min_ratio_to_activate: is not a number");
  EXPECT_EQ(refusal(changed("qwen3", {{"do_resize", false}})), "do_resize: false is not supported");
  EXPECT_EQ(refusal(changed("qwen3", {{"do_resize", "no"}})), "do_resize: is not true or false");
  EXPECT_EQ(refusal(changed("qwen3", {{"resample", 1}})), "resample: 1 is neither 2 (bilinear) nor 3 (bicubic)");
}

TEST(Spec, RefusesNumbersThatCannotBe) {
  EXPECT_EQ(refusal(changed("qwen3", {{"patch_size", 0}})), "patch_size: 0 is not between 1 and 65536");
  EXPECT_EQ(refusal(changed("qwen3", {{"patch_size", 1.5}})), "patch_size: is not a whole number");
  EXPECT_EQ(refusal(changed("qwen3", {{"patch_size", 300}})),
            "patches of 300 pixels, 2 x 2 to a token, are not supported");
  EXPECT_EQ(refusal(changed("qwen3", {{"size", {{"shortest_edge", 99999999}}}})),
            "at least 99999999 pixels and at most 16777216 are none");
  EXPECT_EQ(refusal(changed("qwen3", {{"image_std", {0.5, 0.5, 0}}})), "image_std: is 0");
  EXPECT_EQ(refusal(changed("qwen3", {{"image_mean", {0.5, 0.5}}})), "image_mean: has not one number for each channel");
  EXPECT_EQ(refusal(changed("qwen3", {{"image_mean", {0.5, 0.5, "x"}}})), "image_mean: is not a number");
  EXPECT_EQ(refusal(changed("qwen3", {{"image_mean", 1e300}})), "image_mean: is not a number of float32");
  EXPECT_EQ(refusal(golden()["configs"]["qwen3"], 14), "patch_size: 16, but the tower has 14");
  EXPECT_EQ(refusal(golden()["configs"]["gemma3"]), "the tower's patch_size: missing");
  EXPECT_EQ(refusal(changed("gemma3", {{"image_seq_length", 255}}), 14),
            "896 x 896 pixels in patches of 14 do not become 255 tokens");
  EXPECT_EQ(refusal(changed("gemma3", {{"size", 896}}), 14), "size: has not height and width");
}

TEST(Spec, OfAnMmprojIsThatOfTheFolder) {
  MmprojNumbers file{.projector_type = "qwen3vl_merger", .image_size = 768, .patch_size = 16, .spatial_merge_size = 2};
  file.image_mean = file.image_std = {0.5, 0.5, 0.5};
  const auto qwen = image_spec_of_mmproj(file);
  ASSERT_TRUE(qwen.ok()) << qwen.error().message;
  EXPECT_EQ(qwen->min_pixels, 65536);
  EXPECT_EQ(qwen->max_pixels, 16777216);
  EXPECT_EQ(qwen->mean, file.image_mean);
  file.image_max_pixels = 1 << 20;
  EXPECT_EQ(image_spec_of_mmproj(file)->max_pixels, 1 << 20);
  const auto gemma3 = image_spec_of_mmproj({.projector_type = "gemma3", .image_size = 896, .patch_size = 14});
  ASSERT_TRUE(gemma3.ok());
  EXPECT_EQ(gemma3->merge, 4);
  const auto small =
      image_spec_of_mmproj({.projector_type = "gemma3", .image_size = 112, .patch_size = 14, .spatial_merge_size = 2});
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(plan_image(*small, 1000, 10)->tokens, 16);
  EXPECT_FALSE(
      image_spec_of_mmproj({.projector_type = "gemma3", .image_size = 112, .patch_size = 14, .spatial_merge_size = 9})
          .ok());
  const auto gemma4 = image_spec_of_mmproj({.projector_type = "gemma4v", .patch_size = 16});
  ASSERT_TRUE(gemma4.ok());
  EXPECT_EQ(gemma4->max_tokens, 280);
  EXPECT_EQ(plan_image(*gemma4, 1000, 1000)->tokens, 256);
  const auto other = image_spec_of_mmproj({.projector_type = "pixtral"});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().message, "clip.projector_type: 'pixtral' is no projector that is known here");
}

}  // namespace
}  // namespace quire::image::test
