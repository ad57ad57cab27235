#include "engine/prompt_image.h"

#include <algorithm>

namespace quire {

PromptImages::PromptImages(std::vector<PromptImage> images) : images_(std::move(images)) {
  for (const PromptImage& i : images_) shifts_.push_back(shifts_.back() + i.tokens() - std::max(i.rows, i.columns));
}

size_t PromptImages::at(int64_t position) const {
  const auto found = std::ranges::partition_point(images_, [&](const PromptImage& i) { return i.end() <= position; });
  return static_cast<size_t>(found - images_.begin());
}

Coordinates PromptImages::coordinates(int64_t position) const {
  const size_t i = at(position);
  const auto shifted = [&](int64_t p) { return static_cast<int32_t>(p - shifts_[i]); };
  if (i == images_.size() || position < images_[i].position) {
    const int32_t at = shifted(position);
    return {at, at, at};
  }
  const PromptImage& image = images_[i];
  const int32_t start = shifted(image.position), token = static_cast<int32_t>(position - image.position);
  return {start, start + token / image.columns, start + token % image.columns};
}

}  // namespace quire
