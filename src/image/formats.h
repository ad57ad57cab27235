// What each format provides to decode.cpp: its header, and its pixels as they are stored.
#pragma once

#include "image/decode.h"

namespace quire::image {

Result<ImageHeader> read_png_header(Bytes file);
Result<ImageHeader> read_jpeg_header(Bytes file);
Result<ImageHeader> read_webp_header(Bytes file);
Result<ImageHeader> read_gif_header(Bytes file);

// `header` is what read_*_header said of the same file.
Result<Pixels> decode_png(Bytes file, const ImageHeader& header);
Result<Pixels> decode_jpeg(Bytes file, const ImageHeader& header);
Result<Pixels> decode_webp(Bytes file, const ImageHeader& header);
Result<Pixels> decode_gif(Bytes file, const ImageHeader& header);

// Numbers at a place that the caller has checked to be within the bytes.
inline uint32_t byte_at(Bytes b, size_t at) {
  return std::to_integer<uint32_t>(b[at]);
}
inline uint32_t big16(Bytes b, size_t at) {
  return byte_at(b, at) << 8 | byte_at(b, at + 1);
}
inline uint32_t big32(Bytes b, size_t at) {
  return big16(b, at) << 16 | big16(b, at + 2);
}
inline uint32_t little16(Bytes b, size_t at) {
  return byte_at(b, at) | byte_at(b, at + 1) << 8;
}
inline uint32_t little32(Bytes b, size_t at) {
  return little16(b, at) | little16(b, at + 2) << 16;
}

// Whether the text lies at that place, which may be outside of the bytes.
bool has_text(Bytes b, size_t at, std::string_view text);

// A channel of a pixel with this alpha on white, rounded to the nearest.
inline uint8_t on_white(uint32_t value, uint32_t alpha) {
  return static_cast<uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
}
// `count` pixels of red, green, blue and alpha, on white.
void lay_on_white(const uint8_t* rgba, int64_t count, uint8_t* rgb);

}  // namespace quire::image
