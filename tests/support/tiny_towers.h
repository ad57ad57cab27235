// Small random vision towers, the same as in tools/make_vision_goldens.py, as the folders that transformers saves.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/hf_folder.h"
#include "vision/batch.h"

namespace quire::test {

struct TinyTower {
  std::string name;
  uint32_t seed = 0;
  VisionFamily family = VisionFamily::kQwen3;
  std::string model_type;  // of the vision_config
  int64_t width = 0, blocks = 0, heads = 0, ffn = 0, patch = 0, merge = 0, positions = 0, out = 0;
  int64_t max_tokens = 0;                    // Gemma 4: of a picture
  bool standardize = false, bounds = false;  // Gemma 4
  std::vector<int64_t> deepstack;
  std::vector<ImageGrid> grids;

  bool gemma() const { return family == VisionFamily::kGemma3; }
  bool gemma4() const { return family == VisionFamily::kGemma4; }
  int64_t side() const;
  int64_t patch_width() const { return 3 * (family == VisionFamily::kQwen3 ? 2 : 1) * patch * patch; }
  int64_t patch_count() const;
  // All weights under the names of a model folder, in order of name.
  std::vector<HfTensor> hf_tensors() const;
  // config.json, as far as a tower needs it.
  nlohmann::json config() const;
  // preprocessor_config.json; empty: there is none.
  nlohmann::json processor() const;
  // Of all images, one after the other: numbers, and as bytes of one frame.
  std::vector<float> patches() const;
  std::vector<uint8_t> patch_bytes() const;
  nlohmann::json golden() const;
};
std::vector<TinyTower> tiny_towers();
TinyTower tiny_tower(std::string_view name);

inline void PrintTo(const TinyTower& tower, std::ostream* out) {
  *out << tower.name;
}

// config.json and model.safetensors of a tower in a folder of its own, in bf16, f16 or f32.
void write_tower_folder(const TinyTower& tower, const HfFolder& folder, DType type = DType::kBF16);

}  // namespace quire::test
