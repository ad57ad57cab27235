// What config.json says of a vision tower, and the key/value records of an mmproj file.
// Source: the configuration classes of the transformers library (names and defaults).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arch/vision.h"
#include "convert/json.h"
#include "convert/plan.h"
#include "gguf/writer.h"
#include "image/spec.h"

namespace quire::convert {

struct HfVision {
  VisionFamily family = VisionFamily::kQwen3;
  int64_t width = 0, blocks = 0, heads = 0, ffn = 0, patch = 0, positions = 0, out = 0;
  int64_t merge = 0;               // a token is merge x merge patches
  double eps = 1e-6;               // of norms
  std::vector<int64_t> deepstack;  // blocks, in the order of their mergers
  std::array<double, 3> mean{0.5, 0.5, 0.5}, deviation{0.5, 0.5, 0.5};
  int64_t min_pixels = 0, max_pixels = 0;  // of an image; 0: not said
  // Gemma 4. Products have bounds, what is pooled is shifted and scaled, and in the text model tokens of a picture
  // attend to each other in both directions.
  bool bounded = false, scaled = false, both_ways = false;
  image::PanAndScan pan_and_scan;

  int64_t side() const;  // of the square grid of positions
};

// `root` is the whole config.json, `processor` what preprocessor_config.json (or its like) says of images, maybe
// nothing. No value where the model has no tower, or one of a family that is not known. Errors name the key.
Result<std::optional<HfVision>> read_hf_vision(const nlohmann::json& root, const nlohmann::json& processor);

// Of how many blocks outputs go to the text model's first layers.
int64_t deepstack_levels(const nlohmann::json& root);

void write_vision_metadata(const HfVision& vision, const Plan& plan, const std::string& name, gguf::Writer& w);

}  // namespace quire::convert
