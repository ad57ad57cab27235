// WebP by libwebp: lossy, lossless, with alpha, and the first frame of an animation.
#include <webp/decode.h>

#include <cstring>

#include "image/exif.h"
#include "image/formats.h"

namespace quire::image {

namespace {

constexpr size_t kRiffHeader = 12, kChunkHeader = 8, kFrameHeader = 16;
enum Flags : uint32_t { kAnimated = 0x02, kAlpha = 0x10 };

const uint8_t* data_of(Bytes b) {
  return reinterpret_cast<const uint8_t*>(b.data());
}

Error webp_error(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return capacity_error("no memory for a decoder");
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return request_error("the file is truncated");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return request_error("has a feature that WebP does not define");
    default:
      return request_error("is damaged");
  }
}

// The payload of the first chunk of that name at the top; empty if there is none.
Bytes find_chunk(Bytes file, std::string_view name) {
  for (size_t at = kRiffHeader; at <= file.size() && file.size() - at >= kChunkHeader;) {
    const size_t length = little32(file, at + 4), left = file.size() - at - kChunkHeader;
    if (length > left) return {};
    if (has_text(file, at, name)) return file.subspan(at + kChunkHeader, length);
    at += kChunkHeader + length + length % 2;
  }
  return {};
}

// What is decoded: a whole file of one picture, or an animation's first frame and where it lies.
struct Frame {
  Bytes data;
  int64_t x = 0, y = 0, width = 0, height = 0;
};

uint32_t little24(Bytes b, size_t at) {
  return little16(b, at) | byte_at(b, at + 2) << 16;
}

bool is_extended(Bytes file) {
  return has_text(file, kRiffHeader, "VP8X") && file.size() >= kRiffHeader + 18;
}
uint32_t flags_of(Bytes file) {
  return is_extended(file) ? byte_at(file, kRiffHeader + kChunkHeader) : 0;
}

Result<Frame> first_frame(Bytes file, const ImageHeader& header) {
  Frame f{.data = file, .width = header.width, .height = header.height};
  if (flags_of(file) & kAnimated) {
    const Bytes chunk = find_chunk(file, "ANMF");
    if (chunk.size() <= kFrameHeader) return request_error("has no first frame, or the file is truncated");
    f = {chunk.subspan(kFrameHeader), 2 * int64_t{little24(chunk, 0)}, 2 * int64_t{little24(chunk, 3)},
         int64_t{little24(chunk, 6)} + 1, int64_t{little24(chunk, 9)} + 1};
    if (f.x + f.width > header.width || f.y + f.height > header.height)
      return request_error("its first frame lies outside of it");
  }
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(data_of(f.data), f.data.size(), &features);
  if (status != VP8_STATUS_OK) return webp_error(status);
  if (features.has_animation || features.width != f.width || features.height != f.height)
    return request_error("its first frame has another size than it says");
  return f;
}

Status run_libwebp(Bytes data, bool alpha, uint8_t* to, int64_t row_bytes, int64_t rows) {
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return request_error("has no decoder");
  config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {to, static_cast<int>(row_bytes), static_cast<size_t>(row_bytes * rows)};
  const VP8StatusCode status = WebPDecode(data_of(data), data.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) return webp_error(status);
  return {};
}

}  // namespace

Result<ImageHeader> read_webp_header(Bytes file) {
  ImageHeader header;
  if (is_extended(file)) {
    const size_t fields = kRiffHeader + kChunkHeader;
    header.width = int64_t{little24(file, fields + 4)} + 1;
    header.height = int64_t{little24(file, fields + 7)} + 1;
    header.has_alpha = flags_of(file) & kAlpha;
    header.orientation = exif_orientation(find_chunk(file, "EXIF"));
    return header;
  }
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(data_of(file), file.size(), &features);
  if (status != VP8_STATUS_OK) return webp_error(status);
  header.width = features.width;
  header.height = features.height;
  header.has_alpha = features.has_alpha;
  return header;
}

Result<Pixels> decode_webp(Bytes file, const ImageHeader& header) {
  QUIRE_TRY(const Frame frame, first_frame(file, header));
  QUIRE_TRY(Pixels pixels, Pixels::make(header.width, header.height));
  const bool covers = frame.width == header.width && frame.height == header.height;
  // What no frame covers is transparent, which is black where the file has no transparency.
  if (!covers) std::memset(pixels.row(0), header.has_alpha ? 255 : 0, pixels.bytes().size());
  if (!header.has_alpha && covers) {
    QUIRE_CHECKED(run_libwebp(frame.data, false, pixels.row(0), pixels.row_bytes(), frame.height));
    return pixels;
  }
  const int64_t channels = header.has_alpha ? 4 : 3, row_bytes = channels * frame.width;
  QUIRE_TRY(const auto part, allocate<uint8_t>(static_cast<size_t>(row_bytes * frame.height)));
  QUIRE_CHECKED(run_libwebp(frame.data, header.has_alpha, part.get(), row_bytes, frame.height));
  for (int64_t y = 0; y < frame.height; ++y) {
    uint8_t* const to = pixels.row(frame.y + y) + 3 * frame.x;
    const uint8_t* from = part.get() + y * row_bytes;
    if (header.has_alpha)
      lay_on_white(from, frame.width, to);
    else
      std::memcpy(to, from, static_cast<size_t>(row_bytes));
  }
  return pixels;
}

}  // namespace quire::image
