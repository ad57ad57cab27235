#include "image/prepare.h"

#include <array>
#include <cstring>

namespace quire::image {

namespace {

// Every value that a channel can have, normalised: scaled in float64, then float32 as the processors compute.
using Table = std::array<std::array<float, 256>, 3>;

Table table_of(const ImageSpec& spec) {
  Table t;
  for (size_t c = 0; c < t.size(); ++c)
    for (size_t v = 0; v < t[c].size(); ++v) {
      const float scaled = static_cast<float>(static_cast<double>(v) * spec.scale);
      t[c][v] = (scaled - static_cast<float>(spec.mean[c])) / static_cast<float>(spec.deviation[c]);
    }
  return t;
}

// `corner` is the upper left pixel of the patch. Planes of channels, each `frames` times.
void write_planes(const ImageSpec& spec, const Table& t, const uint8_t* corner, int64_t row_bytes, float* to) {
  const int64_t plane = spec.patch * spec.patch;
  for (size_t c = 0; c < t.size(); ++c) {
    float* const first = to;
    for (int64_t y = 0; y < spec.patch; ++y)
      for (int64_t x = 0; x < spec.patch; ++x) *to++ = t[c][corner[y * row_bytes + 3 * x + static_cast<int64_t>(c)]];
    for (int64_t frame = 1; frame < spec.frames; ++frame, to += plane)
      std::memcpy(to, first, static_cast<size_t>(plane) * sizeof(float));
  }
}

void write_pixels(const ImageSpec& spec, const Table& t, const uint8_t* corner, int64_t row_bytes, float* to) {
  for (int64_t y = 0; y < spec.patch; ++y)
    for (int64_t x = 0; x < spec.patch; ++x)
      for (size_t c = 0; c < t.size(); ++c) *to++ = t[c][corner[y * row_bytes + 3 * x + static_cast<int64_t>(c)]];
}

void write_patches(const ImageSpec& spec, const Pixels& pixels, const ImagePlan& plan, float* to) {
  const Table table = table_of(spec);
  const bool planes = spec.layout != PatchLayout::kRowsOfPixels;
  const int64_t block = spec.layout == PatchLayout::kMergedBlocks ? spec.merge : 1;
  const auto write = [&](int64_t row, int64_t column) {
    const uint8_t* const corner = pixels.row(row * spec.patch) + 3 * column * spec.patch;
    (planes ? write_planes : write_pixels)(spec, table, corner, pixels.row_bytes(), to);
    to += spec.values_per_patch();
  };
  for (int64_t row = 0; row < plan.rows; row += block)
    for (int64_t column = 0; column < plan.columns; column += block)
      for (int64_t r = 0; r < block; ++r)
        for (int64_t c = 0; c < block; ++c) write(row + r, column + c);
}

}  // namespace

Result<Patches> prepare(const Pixels& pixels, const ImageSpec& spec) {
  QUIRE_TRY(const ImagePlan plan, plan_image(spec, pixels.width(), pixels.height()));
  Patches patches{plan, spec.values_per_patch(), nullptr};
  QUIRE_TRY(patches.memory, allocate<float>(static_cast<size_t>(patches.count() * patches.length)));
  if (plan.width == pixels.width() && plan.height == pixels.height()) {
    write_patches(spec, pixels, plan, patches.memory.get());
    return patches;
  }
  QUIRE_TRY(const Pixels resized, resize(pixels, plan.width, plan.height, spec.resample));
  write_patches(spec, resized, plan, patches.memory.get());
  return patches;
}

}  // namespace quire::image
