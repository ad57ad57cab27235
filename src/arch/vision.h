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
  kGemma4,  // images of any size up to a number of tokens, pooled, then projected
};

struct VisionFamilyRow {
  VisionFamily family;
  std::string_view projector;  // clip.projector_type
  int64_t frames;              // that one patch covers in time
  bool fused_qkv;              // one product for queries, keys and values
};
// Null where there is none of this name.
const VisionFamilyRow* find_vision_family(std::string_view projector);
const VisionFamilyRow& vision_row(VisionFamily family);
// "qwen3vl_merger, gemma3, gemma4v".
std::string vision_projectors();

enum class VisionRole : uint8_t {
  kPatch,      // the convolution over a patch: one tensor for each frame in GGUF
  kPositions,  // learned, of a square grid
  kNorm1,
  kQkv,
  kQuery,
  kKey,
  kValue,
  kQueryNorm,  // of each head
  kKeyNorm,
  kAttnOut,
  kAttnOutNorm,
  kNorm2,
  kGate,
  kUp,
  kDown,
  kFfnOutNorm,
  kPostNorm,  // Qwen: the merger's norm
  kMergeUp,
  kMergeDown,
  kStackNorm,  // a merger of its own behind some blocks (deepstack)
  kStackUp,
  kStackDown,
  kPooledShift,  // of columns of what is pooled: it is subtracted from them, and they are multiplied by the scale
  kPooledScale,
  kProjectionNorm,
  kProjection,
};

struct VisionTensor {
  VisionRole role;
  bool of_block;          // "{}" in the names is the block's number; in a folder's names of deepstack mergers, the
                          // merger's
  std::string_view stem;  // in GGUF: "<stem>.weight" and, where it has one, "<stem>.bias"
  // Stems in model folders; empty: the family has no such tensor.
  std::string_view qwen3, gemma3, gemma4;
};
const VisionTensor& vision_tensor(VisionRole role);
std::string vision_stem(VisionRole role, int64_t block = 0);
std::string vision_folder_stem(VisionFamily family, VisionRole role, int64_t number = 0);

}  // namespace quire
