// JPEG by libjpeg-turbo, which reports errors by leaving through longjmp: functions that call it hold nothing with a
// destructor.
#include <cstdio>
// jpeglib.h needs <cstdio> before it.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>

#include "image/exif.h"
#include "image/formats.h"

namespace quire::image {

namespace {

// Every scan of a progressive file goes through all of its coefficients, even if it says nothing of them. Encoders
// write about ten.
constexpr int64_t kUsualScans = 16, kMaxScans = 100, kMaxScannedPixels = int64_t{1} << 30;

// Of a file that is nothing but segments, reading these would take long.
constexpr int kMaxSegments = 20000;

enum Marker : uint32_t { kEoi = 0xd9, kSos = 0xda, kApp1 = 0xe1, kTem = 0x01 };

bool is_frame(uint32_t marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

// Whether these two bytes begin a segment: they are no coded data (0), filler (0xff), restart or beginning of a file.
constexpr bool is_marker(uint8_t first, uint8_t second) {
  const bool alone = ((second & 0xf8) == 0xd0) | (second == 0xd8) | (second == kTem);
  return (first == 0xff) & (second != 0) & (second != 0xff) & !alone;
}

// The place of the next marker's number; the size if there is none. Blocks without one are looked at by a loop that
// compilers make of wide instructions: files may have 32 MiB of coded data.
size_t next_marker(Bytes file, size_t at) {
  constexpr size_t kBlock = 128;
  const auto* const b = reinterpret_cast<const uint8_t*>(file.data());
  while (at + 1 < file.size()) {
    if (is_marker(b[at], b[at + 1])) return at + 1;
    if (at + kBlock >= file.size()) {
      ++at;
      continue;
    }
    uint8_t found = 0;
    for (size_t i = 0; i < kBlock; ++i) found |= is_marker(b[at + i], b[at + i + 1]);
    if (!found)
      at += kBlock;
    else
      while (!is_marker(b[at], b[at + 1])) ++at;
  }
  return file.size();
}

Status read_frame(Bytes segment, ImageHeader& header) {
  if (segment.size() < 6) return request_error("its frame is cut short");
  if (header.width != 0) return request_error("has two frames");
  const uint32_t bits = byte_at(segment, 0), components = byte_at(segment, 5);
  if (bits != 8) return request_error("has {} bits per channel, not 8", bits);
  if (components != 1 && components != 3 && components != 4)
    return request_error("has {} channels, not 1, 3 or 4", components);
  header.height = big16(segment, 1);
  header.width = big16(segment, 3);
  if (header.width == 0 || header.height == 0)
    return request_error("has no pixels ({} x {})", header.width, header.height);
  return {};
}

struct JpegRead {
  jpeg_error_mgr manager;  // first: libjpeg gives a pointer to it
  jmp_buf leave;
  char error[JMSG_LENGTH_MAX] = "";
  bool no_memory = false;
};

void on_jpeg_error(j_common_ptr info) {
  auto* read = reinterpret_cast<JpegRead*>(info->err);
  read->no_memory = read->manager.msg_code == JERR_OUT_OF_MEMORY;
  read->manager.format_message(info, read->error);
  longjmp(read->leave, 1);
}
void ignore_jpeg_message(j_common_ptr) {}
void count_jpeg_warning(j_common_ptr info, int level) {
  if (level < 0) ++info->err->num_warnings;
}

boolean on_jpeg_end(j_decompress_ptr info) {
  auto* read = reinterpret_cast<JpegRead*>(info->err);
  std::snprintf(read->error, sizeof read->error, "the file is truncated");
  longjmp(read->leave, 1);
}

// Inks as Adobe stores them, 255 for none, to light.
void add_inks(const uint8_t* cmyk, int64_t count, uint8_t* rgb) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t light = cmyk[4 * i + 3];
    for (int64_t c = 0; c < 3; ++c) {
      const uint32_t ink = 255 - cmyk[4 * i + c];
      rgb[3 * i + c] = static_cast<uint8_t>(light - (ink * light + 127) / 255);
    }
  }
}

struct JpegTarget {
  uint8_t* pixels;
  uint8_t* inks;  // a row of four channels
  int64_t width, height;
};

bool run_libjpeg(jpeg_decompress_struct& info, JpegRead& read, Bytes file, const JpegTarget& to) {
  if (setjmp(read.leave)) return false;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  info.src->fill_input_buffer = on_jpeg_end;
  jpeg_read_header(&info, TRUE);
  if (info.image_width != to.width || info.image_height != to.height) ERREXIT(&info, JERR_BAD_LENGTH);
  const bool inks = info.num_components == 4;
  info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    uint8_t* const row = to.pixels + int64_t{info.output_scanline} * to.width * 3;
    JSAMPROW into = inks ? to.inks : row;
    jpeg_read_scanlines(&info, &into, 1);
    if (inks) add_inks(to.inks, to.width, row);
  }
  return true;
}

}  // namespace

Result<ImageHeader> read_jpeg_header(Bytes file) {
  ImageHeader header;
  int64_t scans = 0;
  bool has_exif = false;
  int segments = 0;
  for (size_t at = next_marker(file, 2); at < file.size(); at = next_marker(file, at)) {
    const uint32_t marker = byte_at(file, at++);
    if (marker == kEoi) break;
    if (++segments > kMaxSegments) return request_error("has more than {} segments", kMaxSegments);
    if (file.size() - at < 2) break;
    const size_t length = big16(file, at);
    if (length < 2 || length > file.size() - at) break;
    const Bytes segment = file.subspan(at + 2, length - 2);
    at += length;
    if (is_frame(marker)) QUIRE_CHECKED(read_frame(segment, header));
    if (marker == kApp1 && !has_exif && has_text(segment, 0, "Exif")) {
      has_exif = true;
      header.orientation = exif_orientation(segment);
    }
    if (marker != kSos) continue;
    if (header.width == 0) return request_error("has a scan before its frame");
    const int64_t scanned = ++scans * header.width * header.height;
    if (scans > kMaxScans || (scans > kUsualScans && scanned > kMaxScannedPixels))
      return request_error("has more than {} scans of {} x {} pixels", scans - 1, header.width, header.height);
  }
  if (header.width == 0) return request_error("has no frame");
  if (scans == 0) return request_error("the file is truncated");
  return header;
}

Result<Pixels> decode_jpeg(Bytes file, const ImageHeader& header) {
  QUIRE_TRY(Pixels pixels, Pixels::make(header.width, header.height));
  QUIRE_TRY(const auto inks, allocate<uint8_t>(static_cast<size_t>(4 * header.width)));
  JpegRead read;
  jpeg_decompress_struct info{};
  info.err = jpeg_std_error(&read.manager);
  read.manager.error_exit = on_jpeg_error;
  read.manager.output_message = ignore_jpeg_message;
  read.manager.emit_message = count_jpeg_warning;
  const bool done = run_libjpeg(info, read, file, {pixels.row(0), inks.get(), header.width, header.height});
  jpeg_destroy_decompress(&info);
  if (!done) return Error{read.no_memory ? Fault::kCapacity : Fault::kRequest, read.error};
  return pixels;
}

}  // namespace quire::image
