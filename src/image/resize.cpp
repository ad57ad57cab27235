#include "image/resize.h"

#include "core/m256.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace quire::image {

namespace {

constexpr int kWeightBits = 22;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

double triangle(double x) {
  return std::max(0.0, 1.0 - std::abs(x));
}

// Keys' cubic convolution with a = -0.5.
double cubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

// For each place of a side: where its first source pixel is, and the weights of that and those behind it.
struct Weights {
  int64_t taps = 0;             // weights that are kept for each place; those that it does not need are 0
  std::vector<int64_t> first;   // by place
  std::vector<int64_t> count;   // by place
  std::vector<int32_t> values;  // places times taps

  const int32_t* of(int64_t place) const { return values.data() + place * taps; }
};

int32_t fixed_point(double w) {
  return static_cast<int32_t>(w < 0 ? w * (1 << kWeightBits) - 0.5 : w * (1 << kWeightBits) + 0.5);
}

Weights weights_for(int64_t from, int64_t to, Resample filter) {
  double (*const function)(double) = filter == Resample::kBicubic ? cubic : triangle;
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double width = std::max(scale, 1.0);  // of one pixel of the result, in source pixels
  const double reach = (filter == Resample::kBicubic ? 2.0 : 1.0) * width;
  const double per_pixel = 1.0 / width;
  Weights w;
  w.taps = 2 * static_cast<int64_t>(std::ceil(reach)) + 1;
  w.first.resize(static_cast<size_t>(to));
  w.count.resize(static_cast<size_t>(to));
  w.values.resize(static_cast<size_t>(to * w.taps));
  std::vector<double> exact(static_cast<size_t>(w.taps));
  for (int64_t place = 0; place < to; ++place) {
    const double centre = (static_cast<double>(place) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(centre - reach + 0.5));
    const int64_t end = std::min<int64_t>(from, static_cast<int64_t>(centre + reach + 0.5));
    double sum = 0;
    for (int64_t i = first; i < end; ++i) {
      const double value = function((static_cast<double>(i) - centre + 0.5) * per_pixel);
      exact[static_cast<size_t>(i - first)] = value;
      sum += value;
    }
    w.first[static_cast<size_t>(place)] = first;
    w.count[static_cast<size_t>(place)] = end - first;
    for (int64_t i = 0; i < end - first; ++i) {
      const double value = exact[static_cast<size_t>(i)];
      w.values[static_cast<size_t>(place * w.taps + i)] = fixed_point(sum != 0 ? value / sum : value);
    }
  }
  return w;
}

// The three sums in the lanes of one register. Reads a byte behind the last pixel.
__m128i weighted_pixels(const uint8_t* pixels, const int32_t* weights, int64_t count) {
  __m128i sum = _mm_set1_epi32(kHalf), more = _mm_setzero_si128();
  const auto product = [&](int64_t i) {
    int32_t four;
    std::memcpy(&four, pixels + 3 * i, sizeof four);
    return _mm_mullo_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)), _mm_set1_epi32(weights[i]));
  };
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    sum = _mm_add_epi32(sum, product(i));
    more = _mm_add_epi32(more, product(i + 1));
  }
  if (i < count) sum = _mm_add_epi32(sum, product(i));
  return _mm_srai_epi32(_mm_add_epi32(sum, more), kWeightBits);
}

// `row` has a byte more than its pixels.
void resize_row(const uint8_t* row, const Weights& w, uint8_t* to) {
  for (size_t place = 0; place < w.first.size(); ++place) {
    const __m128i sums = weighted_pixels(row + 3 * w.first[place], w.of(static_cast<int64_t>(place)), w.count[place]);
    const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(sums, sums), sums);
    const uint32_t pixel = static_cast<uint32_t>(_mm_cvtsi128_si32(bytes));
    std::memcpy(to + 3 * place, &pixel, 3);
  }
}

Result<Pixels> resize_rows(const Pixels& from, int64_t width, Resample filter) {
  QUIRE_TRY(Pixels to, Pixels::make(width, from.height()));
  const Weights w = weights_for(from.width(), width, filter);
  std::vector<uint8_t> padded(static_cast<size_t>(from.row_bytes()) + 1);
  for (int64_t y = 0; y < from.height(); ++y) {
    std::memcpy(padded.data(), from.row(y), static_cast<size_t>(from.row_bytes()));
    resize_row(padded.data(), w, to.row(y));
  }
  return to;
}

constexpr int64_t kStrip = 64;  // bytes of a row that are summed at a time

// One strip of a row of the result. The loops over it have a fixed length, so that compilers keep the sums in
// registers.
void resize_strip(const uint8_t* from, int64_t row_bytes, const int32_t* weights, int64_t count, uint8_t* to) {
  int32_t sums[kStrip];
  for (int32_t& s : sums) s = kHalf;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* row = from + i * row_bytes;
    for (int64_t x = 0; x < kStrip; ++x) sums[x] += row[x] * weights[i];
  }
  for (int64_t x = 0; x < kStrip; ++x) to[x] = static_cast<uint8_t>(std::clamp(sums[x] >> kWeightBits, 0, 255));
}

void resize_tail(const uint8_t* from, int64_t row_bytes, const int32_t* weights, int64_t count, int64_t bytes,
                 uint8_t* to) {
  for (int64_t x = 0; x < bytes; ++x) {
    int32_t sum = kHalf;
    for (int64_t i = 0; i < count; ++i) sum += from[i * row_bytes + x] * weights[i];
    to[x] = static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
  }
}

Result<Pixels> resize_columns(const Pixels& from, int64_t height, Resample filter) {
  QUIRE_TRY(Pixels to, Pixels::make(from.width(), height));
  const Weights w = weights_for(from.height(), height, filter);
  const int64_t bytes = from.row_bytes();
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* const rows = from.row(w.first[static_cast<size_t>(y)]);
    const int64_t count = w.count[static_cast<size_t>(y)];
    int64_t x = 0;
    for (; x + kStrip <= bytes; x += kStrip) resize_strip(rows + x, bytes, w.of(y), count, to.row(y) + x);
    resize_tail(rows + x, bytes, w.of(y), count, bytes - x, to.row(y) + x);
  }
  return to;
}

Result<Pixels> copy_of(const Pixels& from) {
  QUIRE_TRY(Pixels to, Pixels::make(from.width(), from.height()));
  std::memcpy(to.row(0), from.row(0), from.bytes().size());
  return to;
}

}  // namespace

Result<Pixels> resize(const Pixels& from, int64_t width, int64_t height, Resample filter) {
  const bool rows = width != from.width(), columns = height != from.height();
  if (!rows && !columns) return copy_of(from);
  if (!rows) return resize_columns(from, height, filter);
  QUIRE_TRY(Pixels narrow, resize_rows(from, width, filter));
  if (!columns) return narrow;
  return resize_columns(narrow, height, filter);
}

}  // namespace quire::image
