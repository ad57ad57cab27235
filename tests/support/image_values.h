// Patches as the numbers that transformers makes of them.
#pragma once

#include <vector>

#include "image/prepare.h"

namespace quire::test {

inline std::vector<float> image_values(const image::Patches& patches, const image::ImageSpec& spec) {
  const std::vector<float> table = image::colour_table(spec);
  const int64_t run = spec.layout == image::PatchLayout::kRowsOfPixels ? 1 : spec.patch * spec.patch;
  std::vector<float> values;
  const std::span<const uint8_t> bytes = patches.bytes();
  for (int64_t at = 0; at < std::ssize(bytes); at += run)
    for (int64_t frame = 0; frame < spec.frames; ++frame)
      for (int64_t i = at; i < at + run; ++i)
        values.push_back(table[static_cast<size_t>(at / run % 3 * 256 + bytes[static_cast<size_t>(i)])]);
  return values;
}

}  // namespace quire::test
