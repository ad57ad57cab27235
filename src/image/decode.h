// From the bytes of a file to pixels: PNG, JPEG, WebP and the first frame of GIF (docs/images.md).
//
// Clients send these bytes. What a file claims is read first, without decoding anything, and held against the limits;
// only then are pixels allocated. Every refusal is a Fault::kRequest with a sentence that a client may read, and only
// memory that is not there is Fault::kCapacity.
#pragma once

#include <cstdint>
#include <string_view>

#include "image/pixels.h"

namespace quire::image {

struct ImageLimits {
  uint64_t max_bytes = uint64_t{32} << 20;   // of the file
  uint64_t max_pixels = uint64_t{64} << 20;  // width times height: three bytes each
  int64_t max_side = 65536;                  // what resizing keeps for a side grows with it
};

enum class Format { kPng, kJpeg, kWebp, kGif };
std::string_view format_name(Format f);  // "PNG"

struct ImageHeader {
  Format format = Format::kPng;
  int64_t width = 0, height = 0;  // as stored in the file
  int orientation = 1;            // EXIF's, 1 to 8: how the stored picture is to be turned
  bool has_alpha = false;         // there may be pixels that are not opaque

  // As people see it, which is also what decode() gives.
  bool is_turned() const { return orientation >= 5; }
  int64_t shown_width() const { return is_turned() ? height : width; }
  int64_t shown_height() const { return is_turned() ? width : height; }
};

// What the file says of itself, held against the limits. Reads structure alone, and takes no memory.
Result<ImageHeader> read_header(Bytes file, const ImageLimits& limits);

// The pixels, upright. Transparent parts lie on white; 16 bits become their upper 8; colour profiles are not applied.
Result<Pixels> decode(Bytes file, const ImageLimits& limits);

}  // namespace quire::image
