// Files that are damaged, cut short or made to harm: each is refused with a sentence, at once and without memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "image/decode.h"
#include "image/golden.h"

namespace quire::image::test {
namespace {

using testing::HasSubstr;

template <class T>
std::string refusal(const Result<T>& r) {
  if (r.ok()) return "accepted";
  EXPECT_EQ(r.error().fault, Fault::kRequest) << r.error().message;
  return r.error().message;
}
std::string refusal_of(std::string_view file, const ImageLimits& limits = {}) {
  return refusal(decode(bytes_of(file), limits));
}

void put_big(std::string& file, size_t at, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) file[at + i] = static_cast<char>(value >> 8 * (bytes - 1 - i));
}

// The processor's time of the shortest of three runs, in ms: others may use the machine.
template <class F>
double shortest(F run) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begin = std::clock();
    run();
    best = std::min(best, 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return best;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kAtOnce = 200;
constexpr bool kSanitized = true;
#else
constexpr double kAtOnce = 10;
constexpr bool kSanitized = false;
#endif

// While one exists, the process gets no more than some MiB of further addresses: what asks for more fails.
class LittleMemory {
 public:
  LittleMemory() {
    getrlimit(RLIMIT_AS, &before_);
    std::ifstream status("/proc/self/statm");
    rlim_t pages = 0;
    status >> pages;
    rlimit now = before_;
    now.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (16u << 20);
    EXPECT_TRUE(kSanitized || setrlimit(RLIMIT_AS, &now) == 0);  // sanitizers take addresses as they like
  }
  ~LittleMemory() { setrlimit(RLIMIT_AS, &before_); }
  LittleMemory(const LittleMemory&) = delete;

 private:
  rlimit before_{};
};

// Refused with these words, without the time and the memory that decoding would take.
void expect_refused_at_once(const std::string& file, const std::string& words) {
  const LittleMemory little;
  EXPECT_LT(shortest([&] { EXPECT_THAT(refusal_of(file), HasSubstr(words)); }), kAtOnce) << words;
}

TEST(Hostile, LittleMemoryIsLittle) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take addresses as they like";
  const LittleMemory little;
  EXPECT_EQ(std::malloc(64u << 20), nullptr);
}

TEST(Hostile, NoPictureAtAll) {
  EXPECT_EQ(refusal_of(""), "the image is empty");
  EXPECT_EQ(refusal_of("<svg></svg>"), "the image is none of PNG, JPEG, WebP and GIF");
  EXPECT_EQ(refusal_of("RIFF1234WAVE"), "the image is none of PNG, JPEG, WebP and GIF");
}

TEST(Hostile, LimitsAreHeldBeforeAnythingIsDecoded) {
  const std::string file = picture("png-rgb");  // 19 x 13
  EXPECT_EQ(refusal_of(file, {.max_bytes = file.size() - 1}),
            fmt::format("the image has {} bytes, of at most {}", file.size(), file.size() - 1));
  EXPECT_EQ(refusal_of(file, {.max_pixels = 246}), "the PNG image has 19 x 13 pixels, which are more than 246");
  EXPECT_EQ(refusal_of(file, {.max_bytes = file.size(), .max_pixels = 247}), "accepted");
}

TEST(Hostile, EveryBeginningOfAFileIsRefusedOrDecoded) {
  for (const auto& [name, unused] : golden()["files"].items()) {
    const std::string file = picture(name);
    size_t accepted = 0, accepted_of_half = 0;
    for (size_t n = 0; n < file.size(); n += 1 + n / 64) {
      const std::string said = refusal_of(file.substr(0, n));
      EXPECT_FALSE(said.empty());
      accepted += said == "accepted";
      accepted_of_half += said == "accepted" && n < file.size() / 2;
    }
    if (name.find("animated") != std::string::npos) continue;  // of which the first frame alone is read
    EXPECT_EQ(accepted_of_half, 0u) << name;
    EXPECT_LT(accepted, 12u) << name;
  }
}

TEST(Hostile, TruncatedFilesSaySo) {
  for (const char* name : {"png-rgb", "jpeg-420", "jpeg-progressive", "webp-lossy", "webp-lossless", "gif-plain"}) {
    const std::string file = picture(name);
    EXPECT_THAT(refusal_of(file.substr(0, file.size() * 3 / 4)), HasSubstr("truncated")) << name;
  }
}

TEST(Hostile, PngOfManyPixels) {
  std::string file = picture("png-rgb");
  put_big(file, 16, 65535, 4);
  put_big(file, 20, 65535, 4);
  expect_refused_at_once(file, "the PNG image has 65535 x 65535 pixels, which are more than 67108864");
  put_big(file, 16, 0xffffffff, 4);
  EXPECT_THAT(refusal_of(file), HasSubstr("a size that PNG does not have"));
  put_big(file, 16, 0, 4);
  EXPECT_THAT(refusal_of(file), HasSubstr("no pixels"));
  put_big(file, 16, 1 << 26, 4);
  put_big(file, 20, 1, 4);
  EXPECT_EQ(refusal_of(file), "the PNG image has 67108864 x 1 pixels, and a side of more than 65536");
}

TEST(Hostile, PngThatClaimsMoreThanItHas) {
  std::string file = picture("png-rgb");
  put_big(file, 16, 4000, 4);
  EXPECT_NE(refusal_of(file), "accepted");
}

std::string chunk(const std::string& name, const std::string& content) {
  std::string c(8, '\0');
  put_big(c, 0, content.size(), 4);
  c.replace(4, 4, name);
  return c + content + std::string(4, '\0');  // its checksum is wrong, which is passed over in what says nothing
}

TEST(Hostile, PngTextsAndProfilesAreNotUnpacked) {
  const std::string file = picture("png-rgb");
  for (const char* name : {"zTXt", "iCCP", "iTXt", "tEXt", "sPLT"}) {
    // Were it unpacked, it would be an error: these are no compressed bytes.
    std::string more = file;
    more.insert(33, chunk(name, std::string("x\0\0", 3) + std::string(1 << 20, '\x78')));
    EXPECT_LT(shortest([&] { EXPECT_EQ(refusal_of(more), "accepted") << name; }), kAtOnce) << name;
  }
}

TEST(Hostile, FilesOfNothingButSmallParts) {
  const auto filled = [](std::string begin, std::string_view part) {
    while (begin.size() + part.size() <= (32u << 20)) begin += part;
    return begin;
  };
  const std::string jpeg = "\xff\xd8\xff", png = picture("png-rgb").substr(0, 33);
  struct Case {
    std::string file, said;
  } const cases[] = {
      {filled(jpeg, {"\xff\0", 2}), "has no frame"},
      {filled(jpeg, "\xff"), "has no frame"},
      {filled(jpeg, {"\xff\xfe\0\2", 4}), "has more than 20000 segments"},
      {filled(png, {"\0\0\0\0tEXt\0\0\0\0", 12}), "has more than 100000 chunks"},
  };
  for (const Case& c : cases)
    EXPECT_LT(shortest([&] { EXPECT_THAT(refusal_of(c.file), HasSubstr(c.said)); }), kAtOnce) << c.said;
}

TEST(Hostile, JpegOfManyScans) {
  const std::string file = picture("jpeg-progressive");
  const size_t last_scan = file.rfind("\xff\xda"), end = file.size() - 2;
  std::string more = file;
  for (int i = 0; i < 300; ++i) more.insert(end, file.substr(last_scan, end - last_scan));
  EXPECT_LT(shortest([&] { EXPECT_EQ(refusal_of(more), "the JPEG image: has more than 100 scans of 19 x 13 pixels"); }),
            kAtOnce);
  // 17 scans of 8191 x 8191 pixels.
  more = file;
  const size_t frame = more.find("\xff\xc2");
  put_big(more, frame + 5, 8191, 2);
  put_big(more, frame + 7, 8191, 2);
  for (int i = 0; i < 7; ++i) more.insert(end, file.substr(last_scan, end - last_scan));
  expect_refused_at_once(more, "has more than 16 scans");
}

TEST(Hostile, JpegWithAFrameThatIsNotSupported) {
  std::string file = picture("jpeg-444");
  const size_t frame = file.find("\xff\xc0");
  std::string other = file;
  other[frame + 4] = 12;
  EXPECT_EQ(refusal_of(other), "the JPEG image: has 12 bits per channel, not 8");
  other = file;
  other[frame + 9] = 2;
  EXPECT_EQ(refusal_of(other), "the JPEG image: has 2 channels, not 1, 3 or 4");
  other = file;
  put_big(other, frame + 5, 0, 2);
  EXPECT_EQ(refusal_of(other), "the JPEG image: has no pixels (19 x 0)");
  other = file.substr(0, frame) + file.substr(frame, 19) + file.substr(frame);
  EXPECT_EQ(refusal_of(other), "the JPEG image: has two frames");
  put_big(file, frame + 5, 65535, 2);
  put_big(file, frame + 7, 65535, 2);
  expect_refused_at_once(file, "the JPEG image has 65535 x 65535 pixels, which are more than 67108864");
}

TEST(Hostile, WebpOfManyPixels) {
  std::string file = picture("webp-lossless");
  ASSERT_EQ(file.substr(12, 4), "VP8L");
  for (size_t i = 21; i < 25; ++i) file[i] = static_cast<char>(i == 24 ? 0x0f : 0xff);  // 14 bits for each side
  expect_refused_at_once(file, "the WebP image has 16384 x 16384 pixels, which are more than 67108864");
  file = picture("webp-animated");
  ASSERT_EQ(file.substr(12, 4), "VP8X");
  for (size_t i = 24; i < 30; ++i) file[i] = '\xff';
  expect_refused_at_once(file, "16777216 x 16777216 pixels, and a side of more than");
}

TEST(Hostile, WebpWhoseFrameIsNotWhereItSays) {
  std::string file = picture("webp-animated");
  const size_t frame = file.find("ANMF") + 8;
  std::string moved = file;
  moved[frame] = 5;
  EXPECT_EQ(refusal_of(moved), "the WebP image: its first frame lies outside of it");
  moved = file;
  moved[frame + 6] = 3;
  EXPECT_EQ(refusal_of(moved), "the WebP image: its first frame has another size than it says");
  EXPECT_THAT(refusal_of(file.substr(0, frame)), HasSubstr("truncated"));
}

TEST(Hostile, GifWithoutEnd) {
  const std::string file = picture("gif-animated");
  const size_t frame = file.find("!\xf9", 13 + 768);
  std::string more = file.substr(0, file.size() - 1);
  while (more.size() < (16u << 20)) more += file.substr(frame, file.size() - 1 - frame);
  EXPECT_LT(shortest([&] { EXPECT_EQ(refusal_of(more), "accepted"); }), kAtOnce) << "the first frame alone is read";
}

TEST(Hostile, GifThatNeverComesToItsFrame) {
  std::string file = picture("gif-plain").substr(0, 13 + 768);
  while (file.size() < (16u << 20)) file += std::string("!\xfe\x01x\0", 5);
  EXPECT_LT(shortest([&] { EXPECT_EQ(refusal_of(file), "the GIF image: has no frame in its first MiB"); }), kAtOnce);
  EXPECT_EQ(refusal_of(picture("gif-plain").substr(0, 13 + 768) + ";"), "the GIF image: has no frame");
}

TEST(Hostile, GifOfManyPixels) {
  std::string file = picture("gif-grey");
  const size_t frame = file.find(',');
  for (size_t i = 5; i < 9; ++i) file[frame + i] = '\xff';
  expect_refused_at_once(file, "the GIF image has 65535 x 65535 pixels, which are more than 67108864");
}

}  // namespace
}  // namespace quire::image::test
