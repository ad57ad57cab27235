// The one field of EXIF that changes what is seen.
#pragma once

#include "image/pixels.h"

namespace quire::image {

// The orientation (1 to 8) that a block of EXIF names: a TIFF header, maybe behind "Exif\0\0". 1 if it names none, or
// is damaged: a picture that lies on its side is better than none.
int exif_orientation(Bytes block);

// The picture turned and mirrored as the orientation asks.
Result<Pixels> turn(Pixels stored, int orientation);

}  // namespace quire::image
