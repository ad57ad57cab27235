// Every kind of file, as PIL decodes it.
#include "image/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/exif.h"
#include "image/formats.h"
#include "image/golden.h"

namespace quire::image::test {
namespace {

TEST(Decode, GivesThePixelsOfPil) {
  for (const auto& [name, expected] : golden()["files"].items()) {
    const std::string file = picture(name);
    const auto pixels = decode(bytes_of(file), {});
    ASSERT_TRUE(pixels.ok()) << name << ": " << pixels.error().message;
    EXPECT_EQ(pixels->width(), expected["width"]) << name;
    EXPECT_EQ(pixels->height(), expected["height"]) << name;
    EXPECT_EQ(sha256(pixels->bytes()), expected["pixels"]) << name;
  }
}

TEST(Decode, KnowsTheSizeBeforeItDecodes) {
  for (const auto& [name, expected] : golden()["files"].items()) {
    const std::string file = picture(name);
    const auto header = read_header(bytes_of(file), {});
    ASSERT_TRUE(header.ok()) << name;
    EXPECT_EQ(header->shown_width(), expected["width"]) << name;
    EXPECT_EQ(header->shown_height(), expected["height"]) << name;
    const auto format = std::string(format_name(header->format));
    EXPECT_THAT(name, testing::StartsWith(format == "PNG"    ? "png-"
                                          : format == "JPEG" ? "jpeg-"
                                          : format == "WebP" ? "webp-"
                                                             : "gif-"));
  }
}

TEST(Decode, RoundsOnWhiteToTheNearest) {
  for (uint32_t v = 0; v < 256; ++v)
    for (uint32_t a = 0; a < 256; ++a) {
      const uint32_t exact = v * a + 255 * (255 - a);  // times 255
      const uint32_t twice_off = 2 * static_cast<uint32_t>(std::abs(static_cast<int>(on_white(v, a) * 255 - exact)));
      ASSERT_LE(twice_off, 255u) << v << " " << a;
    }
}

Pixels numbered(int64_t width, int64_t height) {
  Pixels p = std::move(Pixels::make(width, height)).value();
  for (int64_t i = 0; i < width * height; ++i) std::memset(p.row(0) + 3 * i, static_cast<int>(i), 3);
  return p;
}

std::string first_of_rows(const Pixels& p) {
  std::string s;
  for (int64_t y = 0; y < p.height(); ++y, s += '/')
    for (int64_t x = 0; x < p.width(); ++x) s += static_cast<char>('a' + p.row(y)[3 * x]);
  return s;
}

TEST(Orientation, TurnsAndMirrors) {
  // Stored as abc/def/.
  const char* const expected[] = {"abc/def/",  "cba/fed/",  "fed/cba/",  "def/abc/",
                                  "ad/be/cf/", "da/eb/fc/", "fc/eb/da/", "cf/be/ad/"};
  for (int o = 1; o <= 8; ++o) {
    const auto turned = turn(numbered(3, 2), o);
    ASSERT_TRUE(turned.ok());
    EXPECT_EQ(first_of_rows(*turned), expected[o - 1]) << o;
  }
}

std::string exif_block(uint16_t tag, uint16_t type, uint16_t value, uint16_t entries = 1, uint32_t directory = 8) {
  std::string b = "II*";
  b += '\0';
  const auto put = [&](uint64_t v, int n) {
    for (int i = 0; i < n; ++i) b += static_cast<char>(v >> 8 * i);
  };
  put(directory, 4);
  put(entries, 2);
  put(tag, 2);
  put(type, 2);
  put(1, 4);
  put(value, 4);
  return b;
}

TEST(Orientation, IsReadFromExifThatIsWhole) {
  EXPECT_EQ(exif_orientation(bytes_of(exif_block(0x112, 3, 6))), 6);
  EXPECT_EQ(exif_orientation(bytes_of(std::string("Exif\0\0", 6) + exif_block(0x112, 3, 3))), 3);
  EXPECT_EQ(exif_orientation(bytes_of(exif_block(0x112, 3, 8, 60000))), 8) << "more entries than there are bytes";
}

TEST(Orientation, IsUprightWhereExifIsDamaged) {
  EXPECT_EQ(exif_orientation({}), 1);
  EXPECT_EQ(exif_orientation(bytes_of("Exif")), 1);
  EXPECT_EQ(exif_orientation(bytes_of(exif_block(0x112, 3, 9))), 1) << "no such orientation";
  EXPECT_EQ(exif_orientation(bytes_of(exif_block(0x112, 3, 0))), 1);
  EXPECT_EQ(exif_orientation(bytes_of(exif_block(0x112, 4, 6))), 1) << "another type";
  EXPECT_EQ(exif_orientation(bytes_of(exif_block(0x113, 3, 6))), 1) << "another tag";
  for (const uint32_t at : {9u, 20u, 25u, 26u, 0x7fffffffu, 0xffffffffu, 0xfffffff8u})
    EXPECT_EQ(exif_orientation(bytes_of(exif_block(0x112, 3, 6, 1, at))), 1) << at;
  const std::string whole = exif_block(0x112, 3, 6);
  for (size_t n = 0; n + 1 < whole.size(); ++n) EXPECT_EQ(exif_orientation(bytes_of(whole.substr(0, n))), 1) << n;
}

}  // namespace
}  // namespace quire::image::test
