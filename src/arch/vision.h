// What vision towers are made of: a row for each family, and for each tensor its names in GGUF files (mmproj) and in
// model folders. `quire convert` writes and the loader of towers finds tensors by these roles.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quire {

enum class VisionFamily : uint8_t {
  kQwen3,   // Qwen3-VL, and Qwen3.5 to 3.8: images of any size, merged 2 x 2 by a feed-forward
  kGemma3,  // SigLIP: images of one size, pooled, then projected
};

struct VisionFamilyRow {
  VisionFamily family;
  std::string_view projector;  // clip.projector_type
  int64_t frames;              // that one patch covers in time
  bool fused_qkv;              // one product for queries, keys and values
  bool both_ways;              // in the text model, tokens of a picture attend to each other in both directions
};
// Null where there is none of this name.
const VisionFamilyRow* find_vision_family(std::string_view projector);
const VisionFamilyRow& vision_row(VisionFamily family);
// "qwen3vl_merger, gemma3".
std::string vision_projectors();

enum class VisionRole : uint8_t {
  kPatch,      // the convolution over a patch: one tensor for each frame in GGUF
  kPositions,  // learned, of a square grid
  kNorm1,
  kQkv,
  kQuery,
  kKey,
  kValue,
  kAttnOut,
  kNorm2,
  kUp,
  kDown,
  kPostNorm,  // Qwen: the merger's norm
  kMergeUp,
  kMergeDown,
  kStackNorm,  // a merger of its own behind some blocks (deepstack)
  kStackUp,
  kStackDown,
  kProjectionNorm,
  kProjection,
};

struct VisionTensor {
  VisionRole role;
  bool of_block;                   // "{}" in the names is the block's number; in a folder's names of deepstack mergers,
                                   // the merger's
  std::string_view stem;           // in GGUF: "<stem>.weight" and, where it has one, "<stem>.bias"
  std::string_view qwen3, gemma3;  // stems in model folders; empty: the family has no such tensor
};
const VisionTensor& vision_tensor(VisionRole role);
std::string vision_stem(VisionRole role, int64_t block = 0);
std::string vision_folder_stem(VisionFamily family, VisionRole role, int64_t number = 0);

}  // namespace quire
