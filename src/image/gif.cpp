// GIF's first frame by giflib.
#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "image/formats.h"

namespace quire::image {

namespace {

// Comments and settings before the first frame are read over, but not for ever.
constexpr size_t kMaxLead = size_t{1} << 20;
constexpr int kOpaque = -1;

// What stands before the first frame's coded pixels.
struct GifLead {
  int64_t width = 0, height = 0;  // of everything
  int transparent = kOpaque;      // the index that is no colour
};

class GifCursor {
 public:
  explicit GifCursor(Bytes b) : bytes_(b.first(std::min(b.size(), kMaxLead))) {}

  bool has(size_t n) const { return bytes_.size() - at_ >= n; }
  Bytes take(size_t n) {
    const Bytes b = bytes_.subspan(at_, n);
    at_ += n;
    return b;
  }
  Error ended() const {
    if (bytes_.size() == kMaxLead) return request_error("has no frame in its first MiB");
    return request_error("the file is truncated");
  }

 private:
  Bytes bytes_;
  size_t at_ = 0;
};

size_t palette_bytes(uint32_t flags) {
  return flags & 0x80 ? size_t{6} << (flags & 7) : 0;
}

Status read_extension(GifCursor& from, GifLead& lead) {
  if (!from.has(1)) return from.ended();
  const bool is_control = byte_at(from.take(1), 0) == GRAPHICS_EXT_FUNC_CODE;
  for (bool first = true;; first = false) {
    if (!from.has(1)) return from.ended();
    const size_t length = byte_at(from.take(1), 0);
    if (length == 0) return {};
    if (!from.has(length)) return from.ended();
    const Bytes block = from.take(length);
    if (first && is_control && length >= 4)
      lead.transparent = byte_at(block, 0) & 1 ? static_cast<int>(byte_at(block, 3)) : kOpaque;
  }
}

Result<GifLead> read_lead(Bytes file) {
  GifCursor from(file);
  if (!from.has(13)) return from.ended();
  const Bytes screen = from.take(13);
  GifLead lead{little16(screen, 6), little16(screen, 8)};
  const size_t palette = palette_bytes(byte_at(screen, 10));
  if (!from.has(palette)) return from.ended();
  from.take(palette);
  for (;;) {
    if (!from.has(1)) return from.ended();
    const uint32_t kind = byte_at(from.take(1), 0);
    if (kind == ';') return request_error("has no frame");
    if (kind == '!') QUIRE_CHECKED(read_extension(from, lead));
    if (kind != ',') continue;  // what stands between blocks is passed over, as PIL does
    if (!from.has(9)) return from.ended();
    const Bytes frame = from.take(9);
    lead.width = std::max<int64_t>(lead.width, little16(frame, 0) + little16(frame, 4));
    lead.height = std::max<int64_t>(lead.height, little16(frame, 2) + little16(frame, 6));
    return lead;
  }
}

int give_gif_bytes(GifFileType* gif, GifByteType* to, int count) {
  auto* left = static_cast<Bytes*>(gif->UserData);
  const size_t n = std::min(left->size(), static_cast<size_t>(count));
  std::memcpy(to, left->data(), n);
  *left = left->subspan(n);
  return static_cast<int>(n);
}

struct CloseGif {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};
using Gif = std::unique_ptr<GifFileType, CloseGif>;

Error gif_error(int code) {
  switch (code) {
    case D_GIF_ERR_NOT_ENOUGH_MEM:
      return capacity_error("no memory for a decoder");
    case D_GIF_ERR_READ_FAILED:
    case D_GIF_ERR_EOF_TOO_SOON:
      return request_error("the file is truncated");
    default:
      return request_error("is damaged");
  }
}

// Leaves giflib where the first frame's coded pixels begin.
Status go_to_frame(GifFileType* gif) {
  for (;;) {
    GifRecordType kind;
    if (DGifGetRecordType(gif, &kind) == GIF_ERROR) return gif_error(gif->Error);
    if (kind == TERMINATE_RECORD_TYPE) return request_error("has no frame");
    if (kind == IMAGE_DESC_RECORD_TYPE) break;
    int code;
    GifByteType* block;
    if (DGifGetExtension(gif, &code, &block) == GIF_ERROR) return gif_error(gif->Error);
    while (block != nullptr)
      if (DGifGetExtensionNext(gif, &block) == GIF_ERROR) return gif_error(gif->Error);
  }
  if (DGifGetImageDesc(gif) == GIF_ERROR) return gif_error(gif->Error);
  return {};
}

using Colours = std::array<GifColorType, 256>;

// Indices without a colour are greys, and the transparent one is white.
Colours colours_of(const GifFileType* gif, int transparent) {
  Colours c;
  for (size_t i = 0; i < c.size(); ++i) {
    const auto grey = static_cast<GifByteType>(i);
    c[i] = {grey, grey, grey};
  }
  const ColorMapObject* map = gif->Image.ColorMap ? gif->Image.ColorMap : gif->SColorMap;
  if (map != nullptr) std::copy_n(map->Colors, std::min<size_t>(c.size(), static_cast<size_t>(map->ColorCount)), &c[0]);
  if (transparent != kOpaque) c[static_cast<size_t>(transparent)] = {255, 255, 255};
  return c;
}

void paint(const Colours& colours, const uint8_t* indices, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    const GifColorType c = colours[indices[i]];
    to[3 * i] = c.Red;
    to[3 * i + 1] = c.Green;
    to[3 * i + 2] = c.Blue;
  }
}

Status read_rows(GifFileType* gif, const Colours& colours, uint8_t* line, Pixels& to) {
  const GifImageDesc& frame = gif->Image;
  struct Pass {
    int first, step;
  };
  constexpr Pass kInterlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}}, kPlain[] = {{0, 1}};
  const std::span<const Pass> passes = frame.Interlace ? std::span<const Pass>(kInterlaced) : kPlain;
  for (const Pass& pass : passes)
    for (int y = pass.first; y < frame.Height; y += pass.step) {
      if (DGifGetLine(gif, line, frame.Width) == GIF_ERROR) return gif_error(gif->Error);
      paint(colours, line, frame.Width, to.row(frame.Top + y) + 3 * int64_t{frame.Left});
    }
  return {};
}

}  // namespace

Result<ImageHeader> read_gif_header(Bytes file) {
  QUIRE_TRY(const GifLead lead, read_lead(file));
  ImageHeader header;
  header.width = lead.width;
  header.height = lead.height;
  header.has_alpha = lead.transparent != kOpaque;
  return header;
}

Result<Pixels> decode_gif(Bytes file, const ImageHeader& header) {
  QUIRE_TRY(const GifLead lead, read_lead(file));
  int code = 0;
  Bytes left = file;
  const Gif gif(DGifOpen(&left, give_gif_bytes, &code));
  if (!gif) return gif_error(code);
  QUIRE_CHECKED(go_to_frame(gif.get()));
  const GifImageDesc& frame = gif->Image;
  if (frame.Width <= 0 || frame.Height <= 0) return request_error("its first frame has no pixels");
  if (frame.Left + frame.Width > header.width || frame.Top + frame.Height > header.height)
    return request_error("its first frame lies outside of it");
  QUIRE_TRY(Pixels pixels, Pixels::make(header.width, header.height));
  QUIRE_TRY(const auto line, allocate<uint8_t>(static_cast<size_t>(std::max<int64_t>(frame.Width, header.width))));
  const Colours colours = colours_of(gif.get(), lead.transparent);
  if (frame.Width != header.width || frame.Height != header.height) {
    // Where no frame is, PIL has the transparent index, or the first.
    std::memset(line.get(), lead.transparent == kOpaque ? 0 : lead.transparent, static_cast<size_t>(header.width));
    for (int64_t y = 0; y < header.height; ++y) paint(colours, line.get(), header.width, pixels.row(y));
  }
  QUIRE_CHECKED(read_rows(gif.get(), colours, line.get(), pixels));
  return pixels;
}

}  // namespace quire::image
