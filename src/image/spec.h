// How a model wants its pictures: what preprocessor_config.json or an mmproj file says, as numbers.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "image/resize.h"

namespace quire::image {

// Which size a picture gets before it is cut into patches.
enum class SizeRule {
  kPixelRange,   // Qwen: multiples of patch * merge, and a number of pixels between two limits
  kFixed,        // Gemma 3: always the same
  kPatchBudget,  // Gemma 4: the largest multiples of patch * merge of about this shape that fit max_tokens
};

// In which order patches stand, and the values within each.
enum class PatchLayout {
  kMergedBlocks,  // Qwen: merge x merge patches side by side; in a patch channel, frame, row, column
  kRowsOfPlanes,  // Gemma 3: row by row; in a patch channel, row, column
  kRowsOfPixels,  // Gemma 4: row by row; in a patch row, column, channel
};

// Gemma 3's pan and scan: a picture that is much wider than tall, or taller than wide, is seen as a whole and then in
// pieces beside each other, each of which gets the size that a picture gets.
struct PanAndScan {
  bool on = false;
  int64_t min_crop = 256;  // pixels: with pieces that would be smaller on either side there are none
  int64_t max_crops = 4;   // of a picture
  float min_ratio = 1.2f;  // of the longer side to the shorter one: below it there are none
  friend bool operator==(const PanAndScan&, const PanAndScan&) = default;
};

struct ImageSpec {
  SizeRule size_rule = SizeRule::kPixelRange;
  PatchLayout layout = PatchLayout::kMergedBlocks;
  Resample resample = Resample::kBicubic;
  int64_t patch = 16;                      // the side of a patch in pixels
  int64_t merge = 2;                       // merge x merge patches become one token
  int64_t frames = 1;                      // of a patch: a still picture is its frame so many times
  int64_t min_pixels = 0, max_pixels = 0;  // kPixelRange
  int64_t width = 0, height = 0;           // kFixed
  int64_t max_tokens = 0;                  // kPatchBudget
  PanAndScan pan_and_scan;                 // kFixed
  // A value of 8 bits becomes (value * scale - mean) / deviation.
  double scale = 1.0 / 255;
  std::array<double, 3> mean = {0, 0, 0}, deviation = {1, 1, 1};

  int64_t bytes_per_patch() const { return 3 * patch * patch; }
};

// What each value of 8 bits becomes: 256 numbers of red, of green and of blue. Scaled in float64, then float32, as the
// processors of transformers compute.
std::vector<float> colour_table(const ImageSpec& spec);

// preprocessor_config.json, or processor_config.json with an `image_processor`. `tower_patch` is the side of a patch in
// the tower's configuration, which Gemma 3's processor does not name; 0 if it is not known. What is not understood is
// refused (Fault::kModelFile): pictures that are prepared in another way look right and are not.
Result<ImageSpec> read_image_spec(const nlohmann::json& config, int64_t tower_patch);

// The numbers of an mmproj file, clip.vision.* unless said otherwise. 0 and empty: not in the file.
struct MmprojNumbers {
  std::string_view projector_type;  // clip.projector_type
  int64_t image_size = 0, patch_size = 0, spatial_merge_size = 0;
  int64_t image_min_pixels = 0, image_max_pixels = 0;
  std::array<double, 3> image_mean = {0, 0, 0}, image_std = {1, 1, 1};
  PanAndScan pan_and_scan;
};
Result<ImageSpec> image_spec_of_mmproj(const MmprojNumbers& file);

// What becomes of a picture of a size, known before it is decoded.
struct ImagePlan {
  int64_t width = 0, height = 0;  // that it is resized to
  int64_t rows = 0, columns = 0;  // patches
  int64_t tokens = 0;
};
// A part of a picture, in pixels; of no width: all of it.
struct Crop {
  int64_t x = 0, y = 0, width = 0, height = 0;
  bool whole() const { return width == 0; }
  friend bool operator==(const Crop&, const Crop&) = default;
};
// What a picture is seen as: all of it, and behind that the pieces of pan and scan, row by row.
std::vector<Crop> views_of(const ImageSpec& spec, int64_t width, int64_t height);

// `width` and `height` as shown (ImageHeader). Refuses shapes that the model's processor refuses.
Result<ImagePlan> plan_image(const ImageSpec& spec, int64_t width, int64_t height);

}  // namespace quire::image
