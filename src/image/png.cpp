// PNG by libpng, which reports errors by leaving through longjmp: functions that call it hold nothing with a
// destructor.
#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "image/exif.h"
#include "image/formats.h"

namespace quire::image {

namespace {

constexpr size_t kFirstChunk = 8, kChunkFrame = 12;  // length, name, checksum
constexpr int kMaxChunks = 100000;                   // a file of 32 MiB has about 4000

// One decoding: what libpng reads from, and what it said when it gave up.
struct PngRead {
  Bytes left;
  char error[128] = "";
};

void on_png_error(png_structp png, const char* text) {
  auto* read = static_cast<PngRead*>(png_get_error_ptr(png));
  std::snprintf(read->error, sizeof read->error, "%s", text);
  longjmp(png_jmpbuf(png), 1);
}

void ignore_png_warning(png_structp, const char*) {}

void give_png_bytes(png_structp png, png_bytep to, size_t count) {
  auto* read = static_cast<PngRead*>(png_get_io_ptr(png));
  if (count > read->left.size()) png_error(png, "the file is truncated");
  std::memcpy(to, read->left.data(), count);
  read->left = read->left.subspan(count);
}

struct PngTarget {
  uint8_t* pixels;    // rows of three bytes, or of four
  uint8_t* one_row;   // where rows have four and are laid on white one by one, else null
  int64_t row_bytes;  // of `pixels`
  int64_t width, height;
  bool alpha;
};

void set_transforms(png_structp png, png_infop info, bool alpha) {
  png_set_strip_16(png);
  png_set_packing(png);
  png_set_expand(png);  // palettes, 1 to 4 bits, and transparency of one colour as alpha
  png_set_gray_to_rgb(png);
  if (alpha)
    png_set_add_alpha(png, 0xff, PNG_FILLER_AFTER);
  else
    png_set_strip_alpha(png);
  png_read_update_info(png, info);
}

void read_png_rows(png_structp png, const PngTarget& to, int passes) {
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < to.height; ++y) {
      uint8_t* const row = to.pixels + y * to.row_bytes;
      png_read_row(png, to.one_row ? to.one_row : row, nullptr);
      if (to.one_row) lay_on_white(to.one_row, to.width, row);
    }
}

// False where libpng gave up.
bool run_libpng(png_structp png, png_infop info, const PngTarget& to) {
  if (setjmp(png_jmpbuf(png))) return false;
  // The size was checked, and chunks that say nothing of pixels are passed over, not unpacked.
  png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(png, info);
  if (png_get_image_width(png, info) != to.width || png_get_image_height(png, info) != to.height)
    png_error(png, "it has two sizes");
  const int passes = png_set_interlace_handling(png);
  set_transforms(png, info, to.alpha);
  if (png_get_rowbytes(png, info) != static_cast<size_t>(to.width) * (to.alpha ? 4 : 3))
    png_error(png, "its rows have another length than its header says");
  read_png_rows(png, to, passes);
  return true;
}

Status read_png(Bytes file, const PngTarget& to) {
  PngRead read{.left = file};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &read, on_png_error, ignore_png_warning);
  if (png == nullptr) return capacity_error("no memory for a decoder");
  png_infop info = png_create_info_struct(png);
  if (info == nullptr) {
    png_destroy_read_struct(&png, nullptr, nullptr);
    return capacity_error("no memory for a decoder");
  }
  png_set_read_fn(png, &read, give_png_bytes);
  const bool done = run_libpng(png, info, to);
  png_destroy_read_struct(&png, &info, nullptr);
  if (!done) return request_error("{}", read.error);
  return {};
}

bool is_interlaced(Bytes file) {
  return byte_at(file, kFirstChunk + 20) != 0;
}

}  // namespace

Result<ImageHeader> read_png_header(Bytes file) {
  if (file.size() < kFirstChunk + 25 || !has_text(file, kFirstChunk + 4, "IHDR"))
    return request_error("begins without a header");
  const Bytes fields = file.subspan(kFirstChunk + 8);
  ImageHeader header;
  header.width = big32(fields, 0);
  header.height = big32(fields, 4);
  if (std::max(header.width, header.height) > 0x7fffffff) return request_error("names a size that PNG does not have");
  header.has_alpha = (byte_at(fields, 9) & PNG_COLOR_MASK_ALPHA) != 0;
  int chunks = 0;
  for (size_t at = kFirstChunk; file.size() - at >= kChunkFrame;) {
    if (++chunks > kMaxChunks) return request_error("has more than {} chunks", kMaxChunks);
    const size_t length = big32(file, at), left = file.size() - at - kChunkFrame;
    if (has_text(file, at + 4, "tRNS")) header.has_alpha = true;
    if (length > left || has_text(file, at + 4, "IEND")) break;
    if (has_text(file, at + 4, "eXIf")) header.orientation = exif_orientation(file.subspan(at + 8, length));
    at += length + kChunkFrame;
  }
  return header;
}

Result<Pixels> decode_png(Bytes file, const ImageHeader& header) {
  QUIRE_TRY(Pixels pixels, Pixels::make(header.width, header.height));
  PngTarget to{pixels.row(0), nullptr, pixels.row_bytes(), header.width, header.height, header.has_alpha};
  if (!header.has_alpha) {
    QUIRE_CHECKED(read_png(file, to));
    return pixels;
  }
  // Interlaced rows are complete behind the last pass only.
  const bool whole = is_interlaced(file);
  QUIRE_TRY(const auto rgba, allocate<uint8_t>(static_cast<size_t>(4 * header.width * (whole ? header.height : 1))));
  if (whole) {
    to.pixels = rgba.get();
    to.row_bytes = 4 * header.width;
  } else {
    to.one_row = rgba.get();
  }
  QUIRE_CHECKED(read_png(file, to));
  if (whole) lay_on_white(rgba.get(), header.width * header.height, pixels.row(0));
  return pixels;
}

}  // namespace quire::image
