#include "lab/synth_values.h"

#include <cmath>
#include <numeric>

#include "quant/block_bytes.h"
#include "quant/format_table.h"

namespace quire::cli {
namespace {

// Random bytes are valid blocks but for the scales, which are set so that the values have the wanted spread.
// The file's spread is measured on the bytes themselves: with a scale of one, decoded.
void fill_blocks(const quant::FormatRow& f, float deviation, std::mt19937_64& random, std::vector<std::byte>& out) {
  const DTypeInfo& info = dtype_info(f.type);
  const auto size = static_cast<size_t>(info.block_bytes);
  const auto set_scale = [&](float scale) {
    for (size_t at = 0; at < out.size(); at += size) {
      quant::store_half(out.data() + at + f.scale_at, scale);
      if (f.min_at >= 0) quant::store_half(out.data() + at + f.min_at, scale * f.min_ratio);
    }
  };
  for (size_t at = 0; at < out.size(); ++at) out[at] = static_cast<std::byte>(random() >> 56);
  set_scale(1);
  std::vector<float> sample(static_cast<size_t>(info.block_elems) * 64);
  quant::decode_row(f.type, out.data(), static_cast<int64_t>(sample.size()), sample.data());
  double squares = 0;
  for (const float x : sample) squares += double{x} * x;
  set_scale(deviation / static_cast<float>(std::sqrt(squares / static_cast<double>(sample.size()))));
}

// An NVFP4 value is at most 6 * 448 times the tensor's factor; uniform ones are at most sqrt(3) deviations.
float nvfp4_scale(float deviation) {
  return 2 * deviation / (6 * 448);
}

// Values of one type and spread, a few megabytes; a tensor is a piece of them, repeated. As many as make whole blocks
// on whole pages, and so many that an expert is not the next one again.
std::vector<std::byte> make_pattern(DType type, float deviation, std::mt19937_64& random) {
  const DTypeInfo& info = dtype_info(type);
  int64_t elems = int64_t{1} << 22;
  while (static_cast<size_t>(dtype_bytes(type, elems)) % kLargestPage != 0) elems *= 2;
  std::vector<std::byte> out(static_cast<size_t>(dtype_bytes(type, elems)));
  // IQ4_NL is encoded, so that files which are made again are the same.
  if (const quant::FormatRow& f = *quant::find_format(type); f.spread != 0 && type != DType::kIQ4_NL) {
    fill_blocks(f, deviation, random, out);
    return out;
  }
  std::vector<float> row(static_cast<size_t>(info.block_elems) * 16);
  std::uniform_real_distribution<float> uniform(-deviation * std::sqrt(3.0f), deviation * std::sqrt(3.0f));
  const size_t step = static_cast<size_t>(dtype_bytes(type, static_cast<int64_t>(row.size())));
  for (size_t at = 0; at < out.size(); at += step) {
    for (float& x : row) x = uniform(random);
    const auto n = static_cast<int64_t>(row.size());
    const float tensor_scale = type == DType::kNVFP4 ? nvfp4_scale(deviation) : 1;
    quant::encode_row(type, row.data(), n, {.search = quant::Search::kNearest, .tensor_scale = tensor_scale},
                      out.data() + at);
  }
  return out;
}

float deviation_of(int64_t cols) {
  return 1 / std::sqrt(static_cast<float>(cols));
}

}  // namespace

float synth_nvfp4_scale(int64_t cols) {
  return nvfp4_scale(deviation_of(cols));
}

SynthPayload SynthValueSource::matrix(DType type, int64_t cols, int64_t elems) {
  std::vector<std::byte>& bytes = patterns_[{type, cols}];
  if (bytes.empty()) bytes = make_pattern(type, deviation_of(cols), random_);
  // Each tensor begins at another place, so that few are equal.
  const size_t unit = std::lcm(kLargestPage, static_cast<size_t>(dtype_info(type).block_bytes));
  return {.pattern = bytes,
          .begin = turn_++ * 61 * unit % bytes.size(),
          .bytes = static_cast<size_t>(dtype_bytes(type, elems))};
}

SynthPayload SynthValueSource::vector(SynthValues values, int64_t elems) {
  float low = 1, high = 1;
  if (values == SynthValues::kDecay) low = -4, high = -0.25f;
  if (values == SynthValues::kTimeStep) low = -4, high = -1;
  if (values == SynthValues::kBias) low = -0.1f, high = 0.1f;
  if (values == SynthValues::kLow) low = high = -16;
  if (values == SynthValues::kHigh) low = high = 16;
  vector_.resize(static_cast<size_t>(elems));
  for (float& x : vector_) x = low + (high - low) * static_cast<float>(random_() >> 40) * 0x1p-24f;
  return of_vector();
}

SynthPayload SynthValueSource::constants(float value, int64_t elems) {
  vector_.assign(static_cast<size_t>(elems), value);
  return of_vector();
}

SynthPayload SynthValueSource::of_vector() const {
  const auto bytes = std::as_bytes(std::span(vector_));
  return {.pattern = bytes, .begin = 0, .bytes = bytes.size()};
}

}  // namespace quire::cli
