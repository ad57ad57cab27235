// Small models that take images, as model folders. GPUs take other shapes: theirs have wider heads and states, and no
// golden outputs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "support/golden.h"
#include "support/hf_folder.h"
#include "support/tiny_towers.h"

namespace quire::test {

inline constexpr TokenId kImagePad = 316;  // a token that the text models' tokenizers do not use

enum class ImageKind {
  kHybrid,     // tiny-qwen35 behind the tower vision-qwen35
  kDeepstack,  // tiny-qwen3vl behind vision-qwen3vl, whose blocks go to its first layers, too
  kBothWays,   // tiny-gemma3, as wide as the tower vision-gemma3 puts out: a picture's tokens attend to each other
  kWindows,    // tiny-gemma4 behind vision-gemma4: they do so in layers with a window alone, which a picture exceeds
  kPerLayer,   // tiny-gemma4e behind vision-gemma4e: with embeddings of each layer; pictures are read as texts are
};
std::string image_kind_name(ImageKind kind);

// Writes the folder; the tokenizer calls that token "<|image_pad|>", or as Gemma's do, which have others as well.
void write_image_model(const HfFolder& folder, Device device = Device::kCpu, ImageKind kind = ImageKind::kHybrid);
// Loaded once in a process.
const ModelPtr& image_model(Device device = Device::kCpu, ImageKind kind = ImageKind::kHybrid);

// The same with a bound on pictures, and so on what there is room for.
ModelPtr image_model_of(int64_t max_image_pixels);

// The patches of image `number` of the tower (tiny_towers.h), where numbers go round; with another `seed` others of
// that size.
std::shared_ptr<const image::Patches> image_patches(size_t number, int seed = 0, ImageKind kind = ImageKind::kHybrid);
// The same as a part of a prompt.
PromptImage prompt_image(size_t number, int64_t position, int seed = 0, ImageKind kind = ImageKind::kHybrid);
// A picture of any size, in patches; `seed` names its content.
PromptImage made_up_image(int64_t rows, int64_t columns, int64_t position, int seed);

}  // namespace quire::test
