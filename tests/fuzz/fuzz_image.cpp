// Any bytes as a picture (PNG, JPEG, WebP or GIF, as their first bytes say) and as a processor's JSON: the size that
// the header names is that of the pixels, every error has a sentence, and what was decoded becomes patches.
//   build/fuzz/fuzz_image -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/image
// The seeds are the pictures of tests/image/make_golden.py.
#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "image/decode.h"
#include "image/prepare.h"

namespace quire::image {
namespace {

constexpr ImageLimits kLimits{.max_bytes = 1 << 20, .max_pixels = 1 << 18};

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

template <class T>
void require_sentence(const Result<T>& r, Fault fault) {
  if (r.ok()) return;
  require(!r.error().message.empty(), "an error has a message");
  require(r.error().fault == fault, "a bad file is its sender's fault");
}

// Sums may not pass the range, whatever the values are.
void prepare_for(SizeRule rule, const Pixels& pixels) {
  ImageSpec spec;
  spec.size_rule = rule;
  spec.patch = 4;
  spec.min_pixels = 64;
  spec.max_pixels = 4096;
  spec.width = spec.height = 24;
  spec.max_tokens = 70;
  const auto patches = prepare(pixels, spec);
  require_sentence(patches, Fault::kRequest);
  if (!patches.ok()) return;
  require(std::ssize(patches->bytes()) == 3 * patches->plan.width * patches->plan.height, "patches cover the picture");
}

void read_picture(Bytes file) {
  const auto header = read_header(file, kLimits);
  require_sentence(header, Fault::kRequest);
  const auto pixels = decode(file, kLimits);
  require_sentence(pixels, Fault::kRequest);
  if (!pixels.ok()) return;
  require(header.ok(), "what is decoded has a header");
  require(pixels->width() == header->shown_width() && pixels->height() == header->shown_height(), "sizes agree");
  for (const SizeRule rule : {SizeRule::kPixelRange, SizeRule::kFixed, SizeRule::kPatchBudget})
    prepare_for(rule, *pixels);
}

// A PNG with every checksum as it should be: else changed bytes come no further than to those.
std::string with_checksums(Bytes file) {
  std::string s(reinterpret_cast<const char*>(file.data()), file.size());
  const auto* const b = reinterpret_cast<const uint8_t*>(s.data());
  for (size_t at = 8; s.size() - at >= 12;) {
    const size_t length = size_t{b[at]} << 24 | b[at + 1] << 16 | b[at + 2] << 8 | b[at + 3];
    if (length > s.size() - at - 12) break;
    const uLong sum = crc32(0, b + at + 4, static_cast<uInt>(length + 4));
    at += 12 + length;
    for (size_t i = 0; i < 4; ++i) s[at - 4 + i] = static_cast<char>(sum >> (24 - 8 * i));
  }
  return s;
}

void read_spec(std::string_view text) {
  const auto config = nlohmann::json::parse(text, nullptr, false);
  const auto spec = read_image_spec(config, 14);
  require_sentence(spec, Fault::kModelFile);
  if (!spec.ok()) return;
  const auto plan = plan_image(*spec, 640, 480);
  require_sentence(plan, Fault::kRequest);
  constexpr int64_t kWidth = 640, kHeight = 100;
  int64_t seen = 0;
  for (const Crop& crop : views_of(*spec, kWidth, kHeight)) {
    require(crop.x >= 0 && crop.x + crop.width <= kWidth && crop.y == 0, "a piece lies within the picture");
    seen += crop.width;
  }
  require(seen == 0 || seen == kWidth, "pieces cover the picture");
}

}  // namespace
}  // namespace quire::image

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0 && data[0] == '{') quire::image::read_spec({reinterpret_cast<const char*>(data), size});
  const quire::image::Bytes file(reinterpret_cast<const std::byte*>(data), size);
  quire::image::read_picture(file);
  if (size > 8 && data[0] == 0x89) {
    const std::string repaired = quire::image::with_checksums(file);
    quire::image::read_picture(std::as_bytes(std::span(repaired)));
  }
  return 0;
}
