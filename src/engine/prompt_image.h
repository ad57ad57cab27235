// Pictures within a prompt, as the engine takes them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "image/prepare.h"

namespace quire {

// Stands for everything that a picture's rows depend on besides the tower: two pictures with the same digest are the
// same picture to the caches of an engine. SHA-256, because clients choose the bytes.
using ImageDigest = std::array<std::byte, 32>;

struct PromptImage {
  int64_t position = 0;           // in the prompt: where its tokens begin, each of them LoadedVision::token
  int32_t rows = 0, columns = 0;  // of tokens: patches, merged
  ImageDigest digest{};
  std::shared_ptr<const image::Patches> patches;  // as VisionTower::forward() takes them

  int64_t tokens() const { return int64_t{rows} * columns; }
  int64_t end() const { return position + tokens(); }
};

// Where a token stands for the rotation: time, row and column (ops/attention, AttentionPrepareArgs::coordinates).
using Coordinates = std::array<int32_t, 3>;

// The pictures of a prompt, in its order.
//
// Texts have three equal coordinates. A picture that begins at coordinate s has time s, rows from s and columns from s
// on, and what follows it goes on at s + the longer of its sides. So a token behind pictures stands at another place
// than its position in the sequence says; blocks, windows and masks go by the position.
class PromptImages {
 public:
  PromptImages() = default;
  // By ascending position, without overlaps.
  explicit PromptImages(std::vector<PromptImage> images);

  bool empty() const { return images_.empty(); }
  size_t size() const { return images_.size(); }
  const PromptImage& operator[](size_t i) const { return images_[i]; }
  auto begin() const { return images_.begin(); }
  auto end() const { return images_.end(); }

  // The first picture that ends behind `position`: the one that has it, or the next one; size() if there is none.
  size_t at(int64_t position) const;
  // Of the token at any position of the sequence, also behind the prompt.
  Coordinates coordinates(int64_t position) const;

 private:
  std::vector<PromptImage> images_;
  std::vector<int64_t> shifts_{0};  // what the first i pictures take from coordinates: positions less this
};

}  // namespace quire
