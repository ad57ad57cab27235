// A vision tower's numbers, read from the metadata of an mmproj file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "arch/vision.h"
#include "core/result.h"
#include "gguf/reader.h"
#include "image/spec.h"

namespace quire {

struct VisionConfig {
  VisionFamily family = VisionFamily::kQwen3;
  int64_t width = 0, blocks = 0, heads = 0, ffn = 0;
  int64_t patch = 0;      // pixels of a side
  int64_t frames = 1;     // that a patch covers in time
  int64_t merge = 0;      // a token is merge x merge patches
  int64_t positions = 0;  // learned: of a square grid, or, of Gemma 4, of each axis
  int64_t out_width = 0;  // the text model's
  float eps = 1e-6f;      // of all norms
  float rope_theta = 1e4f;
  std::vector<int64_t> deepstack;  // blocks whose outputs go to the text model as well, ascending
  // Whether, in the text model, tokens of a picture attend to each other in both directions; no value: no file says so.
  std::optional<bool> both_ways;
  // What preprocessing reads. Pixels of an image: 0 where the file does not say.
  std::array<float, 3> image_mean{0.5f, 0.5f, 0.5f}, image_std{0.5f, 0.5f, 0.5f};
  int64_t image_min_pixels = 0, image_max_pixels = 0;
  image::PanAndScan pan_and_scan;

  int64_t head_dim() const { return width / heads; }
  int64_t patch_bytes() const { return 3 * patch * patch; }  // of one frame, as pictures are
  int64_t patch_width() const { return frames * patch_bytes(); }
  // Of a patch as it is multiplied: zeros behind it, because a GPU takes rows of whole eights.
  int64_t patch_columns() const { return (patch_width() + 7) / 8 * 8; }
  int64_t merged_width() const { return merge * merge * width; }
  int64_t side() const;  // of the grid of positions
  bool rotates() const { return family != VisionFamily::kGemma3; }
  bool pools() const { return family != VisionFamily::kQwen3; }
  bool fixed_size() const { return family == VisionFamily::kGemma3; }  // every image has side() x side() patches
};

// Whether a file is an mmproj with a vision tower, of any kind.
bool has_vision_tower(const gguf::File& file);

// An error names the key: what is missing, out of range, contradicts another key or a tensor's shape, or asks for what
// is not computed.
Result<VisionConfig> read_vision_config(const gguf::File& file);

}  // namespace quire
