// What src/image makes of a file, for scripts that compare it with PIL and transformers (compare_test.py).
//   image_tool pixels FILE                     a line "WIDTH HEIGHT", then red, green and blue of each pixel
//   image_tool resize FILE WIDTH HEIGHT 2|3    the same, resized: 2 bilinear, 3 bicubic
//   image_tool patches FILE CONFIG PATCH       a line "ROWS COLUMNS TOKENS", then float32 values: of the whole, and of
//                                              what else is seen of it
//   image_tool times FILE WIDTH HEIGHT N       the shortest of N times in ms: decoding, and bicubic resizing
//   image_tool header FILE                     what read_header says, or why it refuses, and how many ms that took
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "image/decode.h"
#include "image/prepare.h"
#include "support/image_values.h"

namespace {

using namespace quire;

std::string read_file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

image::Bytes bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s));
}

template <class T>
T value_or_exit(Result<T> r) {
  if (r.ok()) return std::move(r).value();
  std::fprintf(stderr, "%s\n", r.error().message.c_str());
  std::exit(1);
}

// Of the processor: machines that measure are busy.
double milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

void print_pixels(const image::Pixels& p) {
  std::printf("%ld %ld\n", static_cast<long>(p.width()), static_cast<long>(p.height()));
  std::fwrite(p.bytes().data(), 1, p.bytes().size(), stdout);
}

void print_patches(const image::Pixels& pixels, const char* config, const char* tower_patch) {
  const auto spec =
      value_or_exit(image::read_image_spec(nlohmann::json::parse(read_file(config)), std::atoi(tower_patch)));
  for (const image::Crop& crop : image::views_of(spec, pixels.width(), pixels.height())) {
    const image::Patches p = value_or_exit(image::prepare(pixels, spec, crop));
    if (crop.whole())
      std::printf("%ld %ld %ld\n", static_cast<long>(p.plan.rows), static_cast<long>(p.plan.columns),
                  static_cast<long>(p.plan.tokens));
    const std::vector<float> values = test::image_values(p, spec);
    std::fwrite(values.data(), sizeof(float), values.size(), stdout);
  }
}

void print_times(const std::string& file, int64_t width, int64_t height, int repeats) {
  double decoding = 1e9, resizing = 1e9;
  for (int i = 0; i < repeats; ++i) {
    double begin = milliseconds();
    const image::Pixels p = value_or_exit(image::decode(bytes_of(file), {}));
    decoding = std::min(decoding, milliseconds() - begin);
    begin = milliseconds();
    const image::Pixels r = value_or_exit(image::resize(p, width, height, image::Resample::kBicubic));
    resizing = std::min(resizing, milliseconds() - begin);
  }
  std::printf("%.2f %.2f\n", decoding, resizing);
}

void print_header(const std::string& file) {
  const double begin = milliseconds();
  const auto h = image::read_header(bytes_of(file), {});
  const double ms = milliseconds() - begin;
  if (!h.ok()) {
    std::printf("refused in %.3f ms: %s\n", ms, h.error().message.c_str());
    return;
  }
  std::printf("%s %ld x %ld, orientation %d%s, in %.3f ms\n", std::string(image::format_name(h->format)).c_str(),
              static_cast<long>(h->width), static_cast<long>(h->height), h->orientation, h->has_alpha ? ", alpha" : "",
              ms);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  const std::string file = argc > 2 ? read_file(argv[2]) : "";
  const auto pixels = [&] { return value_or_exit(image::decode(bytes_of(file), {})); };
  if (what == "pixels" && argc == 3)
    print_pixels(pixels());
  else if (what == "resize" && argc == 6)
    print_pixels(
        value_or_exit(image::resize(pixels(), std::atol(argv[3]), std::atol(argv[4]),
                                    std::atoi(argv[5]) == 2 ? image::Resample::kBilinear : image::Resample::kBicubic)));
  else if (what == "patches" && argc == 5)
    print_patches(pixels(), argv[3], argv[4]);
  else if (what == "times" && argc == 6)
    print_times(file, std::atol(argv[3]), std::atol(argv[4]), std::atoi(argv[5]));
  else if (what == "header" && argc == 3)
    print_header(file);
  else
    return std::fprintf(stderr, "image_tool: see the head of tests/image/image_tool.cpp\n"), 2;
  return 0;
}
