// A model's vision tower, made ready: from an mmproj file, or from the model's own folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/id.h"
#include "gguf/reader.h"
#include "image/spec.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"
#include "vision/tower.h"

namespace quire {

// Immutable.
struct LoadedVision {
  gguf::File file;  // its tensors are the tower's weights
  std::unique_ptr<const VisionTower> tower;
  image::ImageSpec spec;   // what pictures are made into before the tower takes them
  TokenId token = -1;      // that stands in a prompt for a row of a picture
  std::string marker;      // what chat templates write for a picture
  std::string written;     // what stands in its place when the text becomes tokens: `token` once, and what is around it
  bool both_ways = false;  // tokens of a picture attend to each other in both directions
  uint64_t identity = 0;   // which tower it is, as LoadedModel::identity() says of the model

  explicit LoadedVision(gguf::File f) : file(std::move(f)) {}
};

// What a model's own files allow, 16,384 tokens, would let one picture stop a server.
inline constexpr int64_t kUsualMaxImagePixels = int64_t{4} << 20;

// What whoever runs the model says of pictures.
struct PictureOptions {
  int64_t max_pixels = kUsualMaxImagePixels;  // larger ones are made smaller, where they may have any size
  bool pan_and_scan = false;                  // also where the model's files do not say so
};

// Errors: what of the file is not understood, or does not fit the model: another width, a tokenizer without the tokens
// for pictures, windows shorter than a picture.
Result<std::unique_ptr<const LoadedVision>> load_vision(gguf::File file, const ModelConfig& text,
                                                        const Tokenizer* tokenizer, const PictureOptions& options = {});

// The GGUF file beside a model that has "mmproj" in its name: the one that is called mmproj-MODEL, or the only one.
// In a hub's cache the one of the model's snapshot, of several gguf::best_mmproj(). Empty: there is none, or it is not
// clear which.
std::string find_mmproj(const std::string& model);
// A model's tower where nobody names one: that file, or the tower of a model folder. No value: it has none. Without
// `matrices` weights may be zeros (convert::OpenOptions).
Result<std::optional<gguf::File>> open_tower_of(const std::string& model, bool matrices = true);

}  // namespace quire
