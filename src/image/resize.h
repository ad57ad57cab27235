// Another size for a picture, with the bits that Image.resize of Pillow gave until 12.1 (docs/images.md says what newer
// ones do).
//
// A pixel of the result is a weighted sum of the pixels around its place. The filter is as wide as a pixel of the
// result, so nothing is passed over where the picture becomes smaller (antialiasing). Weights are fixed-point numbers
// of 22 bits; first rows, then columns, and what lies between the two passes is rounded to 8 bits.
#pragma once

#include "image/pixels.h"

namespace quire::image {

enum class Resample { kBilinear, kBicubic };  // PIL's numbers 2 and 3

Result<Pixels> resize(const Pixels& from, int64_t width, int64_t height, Resample filter);

}  // namespace quire::image
