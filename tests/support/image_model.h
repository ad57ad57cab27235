// A small model that takes images: tiny-qwen35 behind the tower vision-qwen35, as a model folder. GPUs take other
// shapes: theirs has wider states, and no golden outputs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "support/golden.h"
#include "support/hf_folder.h"
#include "support/tiny_towers.h"

namespace quire::test {

inline constexpr TokenId kImagePad = 316;  // a token that the text model's tokenizer does not use

// Writes the folder; the tokenizer calls that token "<|image_pad|>".
void write_image_model(const HfFolder& folder, Device device = Device::kCpu);
// Loaded once in a process.
const ModelPtr& image_model(Device device = Device::kCpu);

// The same with a bound on pictures, and so on what there is room for.
ModelPtr image_model_of(int64_t max_image_pixels);

// The patches of image `number` of the tower (tiny_towers.h); with another `seed` others of that size.
std::shared_ptr<const image::Patches> image_patches(size_t number, int seed = 0);
// The same as a part of a prompt.
PromptImage prompt_image(size_t number, int64_t position, int seed = 0);
// A picture of any size, in patches; `seed` names its content.
PromptImage made_up_image(int64_t rows, int64_t columns, int64_t position, int seed);

}  // namespace quire::test
