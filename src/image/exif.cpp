#include "image/exif.h"

#include <algorithm>
#include <cstring>

#include "image/formats.h"

namespace quire::image {

namespace {

constexpr uint32_t kOrientationTag = 0x112, kShort = 3;

void copy_pixel(uint8_t* to, const uint8_t* from) {
  std::memcpy(to, from, 3);
}

// Every pixel of a turned picture comes from column y and row x: squares of it keep both within the cache.
constexpr int64_t kSquare = 32;

void turn_square(const Pixels& from, Pixels& to, int64_t x0, int64_t y0, bool flip_x, bool flip_y) {
  const int64_t x1 = std::min(x0 + kSquare, to.width()), y1 = std::min(y0 + kSquare, to.height());
  for (int64_t y = y0; y < y1; ++y) {
    const int64_t column = flip_x ? from.width() - 1 - y : y;
    for (int64_t x = x0; x < x1; ++x) {
      const int64_t row = flip_y ? from.height() - 1 - x : x;
      copy_pixel(to.row(y) + 3 * x, from.row(row) + 3 * column);
    }
  }
}

}  // namespace

int exif_orientation(Bytes block) {
  using namespace std::string_view_literals;
  if (has_text(block, 0, "Exif\0\0"sv)) block = block.subspan(6);
  if (block.size() < 8) return 1;
  const bool little = has_text(block, 0, "II");
  if (!little && !has_text(block, 0, "MM")) return 1;
  const auto u16 = [&](size_t at) { return little ? little16(block, at) : big16(block, at); };
  const auto u32 = [&](size_t at) { return little ? little32(block, at) : big32(block, at); };
  const size_t directory = u32(4);
  if (u16(2) != 42 || directory > block.size() - 2) return 1;
  const size_t entries = std::min<size_t>(u16(directory), (block.size() - directory - 2) / 12);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (u16(entry) != kOrientationTag) continue;
    const uint32_t value = u16(entry + 8);
    return u16(entry + 2) == kShort && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Result<Pixels> turn(Pixels stored, int orientation) {
  if (orientation <= 1 || orientation > 8) return stored;
  // The stored picture's first row is at the bottom in 3 and 4, on the right in 6 and 7; its first column is on the
  // right in 2 and 3, at the bottom in 7 and 8.
  const bool swapped = orientation >= 5;
  const bool flip_x = orientation == 2 || orientation == 3 || orientation >= 7;
  const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  QUIRE_TRY(Pixels to,
            swapped ? Pixels::make(stored.height(), stored.width()) : Pixels::make(stored.width(), stored.height()));
  if (swapped) {
    for (int64_t y = 0; y < to.height(); y += kSquare)
      for (int64_t x = 0; x < to.width(); x += kSquare) turn_square(stored, to, x, y, flip_x, flip_y);
    return to;
  }
  for (int64_t y = 0; y < to.height(); ++y) {
    const uint8_t* from = stored.row(flip_y ? stored.height() - 1 - y : y);
    uint8_t* row = to.row(y);
    if (!flip_x) std::memcpy(row, from, static_cast<size_t>(to.row_bytes()));
    for (int64_t x = 0; flip_x && x < to.width(); ++x) copy_pixel(row + 3 * x, from + 3 * (to.width() - 1 - x));
  }
  return to;
}

}  // namespace quire::image
