#include "image/prepare.h"

#include <cstring>

namespace quire::image {

namespace {

// `corner` is the upper left pixel of the patch.
uint8_t* write_planes(int64_t side, const uint8_t* corner, int64_t row_bytes, uint8_t* to) {
  for (int64_t colour = 0; colour < 3; ++colour)
    for (int64_t y = 0; y < side; ++y)
      for (int64_t x = 0; x < side; ++x) *to++ = corner[y * row_bytes + 3 * x + colour];
  return to;
}

uint8_t* write_pixels(int64_t side, const uint8_t* corner, int64_t row_bytes, uint8_t* to) {
  for (int64_t y = 0; y < side; ++y, to += 3 * side)
    std::memcpy(to, corner + y * row_bytes, static_cast<size_t>(3 * side));
  return to;
}

void write_patches(const ImageSpec& spec, const Pixels& pixels, const ImagePlan& plan, uint8_t* to) {
  const auto write_patch = spec.layout == PatchLayout::kRowsOfPixels ? write_pixels : write_planes;
  const int64_t block = spec.layout == PatchLayout::kMergedBlocks ? spec.merge : 1;
  const auto write = [&](int64_t row, int64_t column) {
    to = write_patch(spec.patch, pixels.row(row * spec.patch) + 3 * column * spec.patch, pixels.row_bytes(), to);
  };
  for (int64_t row = 0; row < plan.rows; row += block)
    for (int64_t column = 0; column < plan.columns; column += block)
      for (int64_t r = 0; r < block; ++r)
        for (int64_t c = 0; c < block; ++c) write(row + r, column + c);
}

Result<Pixels> cropped(const Pixels& pixels, const Crop& crop) {
  if (crop.x < 0 || crop.y < 0 || crop.width < 1 || crop.height < 1 || crop.width > pixels.width() - crop.x ||
      crop.height > pixels.height() - crop.y)
    return Error{Fault::kBug, "a part that is not within the picture"};
  QUIRE_TRY(Pixels part, Pixels::make(crop.width, crop.height));
  for (int64_t y = 0; y < crop.height; ++y)
    std::memcpy(part.row(y), pixels.row(crop.y + y) + 3 * crop.x, static_cast<size_t>(part.row_bytes()));
  return part;
}

}  // namespace

Result<Patches> prepare(const Pixels& pixels, const ImageSpec& spec, const Crop& crop) {
  if (!crop.whole()) {
    QUIRE_TRY(const Pixels part, cropped(pixels, crop));
    return prepare(part, spec);
  }
  QUIRE_TRY(const ImagePlan plan, plan_image(spec, pixels.width(), pixels.height()));
  Patches patches{plan, spec.bytes_per_patch(), nullptr};
  QUIRE_TRY(patches.memory, allocate<uint8_t>(static_cast<size_t>(patches.count() * patches.length)));
  if (plan.width == pixels.width() && plan.height == pixels.height()) {
    write_patches(spec, pixels, plan, patches.memory.get());
    return patches;
  }
  QUIRE_TRY(const Pixels resized, resize(pixels, plan.width, plan.height, spec.resample));
  write_patches(spec, resized, plan, patches.memory.get());
  return patches;
}

}  // namespace quire::image
