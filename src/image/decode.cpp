#include "image/decode.h"

#include <algorithm>
#include <cstring>

#include "image/exif.h"
#include "image/formats.h"

namespace quire::image {

namespace {

struct FormatRow {
  std::string_view name;
  Result<ImageHeader> (*read_header)(Bytes);
  Result<Pixels> (*decode)(Bytes, const ImageHeader&);
};

constexpr FormatRow kFormats[] = {
    {"PNG", read_png_header, decode_png},
    {"JPEG", read_jpeg_header, decode_jpeg},
    {"WebP", read_webp_header, decode_webp},
    {"GIF", read_gif_header, decode_gif},
};

const FormatRow& row_of(Format f) {
  return kFormats[static_cast<size_t>(f)];
}

// What a file is, its first bytes say: names and types that a client gives are often wrong.
Result<Format> format_of(Bytes file) {
  if (has_text(file, 0, "\x89PNG\r\n\x1a\n")) return Format::kPng;
  if (has_text(file, 0, "\xff\xd8\xff")) return Format::kJpeg;
  if (has_text(file, 0, "RIFF") && has_text(file, 8, "WEBP")) return Format::kWebp;
  if (has_text(file, 0, "GIF87a") || has_text(file, 0, "GIF89a")) return Format::kGif;
  if (file.empty()) return request_error("the image is empty");
  return request_error("the image is none of PNG, JPEG, WebP and GIF");
}

}  // namespace

std::string_view format_name(Format f) {
  return row_of(f).name;
}

bool has_text(Bytes b, size_t at, std::string_view text) {
  return b.size() >= text.size() && at <= b.size() - text.size() &&
         std::memcmp(b.data() + at, text.data(), text.size()) == 0;
}

void lay_on_white(const uint8_t* rgba, int64_t count, uint8_t* rgb) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < 3; ++c) rgb[3 * i + c] = on_white(rgba[4 * i + c], rgba[4 * i + 3]);
}

Result<ImageHeader> read_header(Bytes file, const ImageLimits& limits) {
  if (file.size() > limits.max_bytes)
    return request_error("the image has {} bytes, of at most {}", file.size(), limits.max_bytes);
  QUIRE_TRY(const Format format, format_of(file));
  auto header = row_of(format).read_header(file);
  if (!header.ok()) return header.take_error().context(fmt::format("the {} image", format_name(format)));
  header->format = format;
  if (header->width <= 0 || header->height <= 0)
    return request_error("the {} image has no pixels ({} x {})", format_name(format), header->width, header->height);
  if (std::max(header->width, header->height) > limits.max_side)
    return request_error("the {} image has {} x {} pixels, and a side of more than {}", format_name(format),
                         header->width, header->height, limits.max_side);
  // Formats have sides of at most 2^31, so the product fits.
  const uint64_t pixels = static_cast<uint64_t>(header->width) * static_cast<uint64_t>(header->height);
  if (pixels > limits.max_pixels)
    return request_error("the {} image has {} x {} pixels, which are more than {}", format_name(format), header->width,
                         header->height, limits.max_pixels);
  return header;
}

Result<Pixels> decode(Bytes file, const ImageLimits& limits) {
  QUIRE_TRY(const ImageHeader header, read_header(file, limits));
  auto stored = row_of(header.format).decode(file, header);
  if (!stored.ok()) return stored.take_error().context(fmt::format("the {} image", format_name(header.format)));
  return turn(std::move(*stored), header.orientation);
}

}  // namespace quire::image
