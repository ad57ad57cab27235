// Random weights for the suites.
#include <algorithm>
#include <cstring>

#include "ops/conformance/conformance.h"
#include "quant/format.h"

namespace quire::conformance {
namespace {

constexpr DType kWeightTypes[] = {
    DType::kF32,   DType::kF16,  DType::kBF16, DType::kQ8_0,   DType::kQ4_0,   DType::kQ4_1,
    DType::kQ5_0,  DType::kQ5_1, DType::kQ4_K, DType::kQ5_K,   DType::kQ6_K,   DType::kMXFP4,
    DType::kNVFP4, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kFP8,
};

void put_half(std::byte* at, float x) {
  const half h = to_half(x);
  std::memcpy(at, &h.bits, sizeof h.bits);
}

// A format of which any bits are values: random bits everywhere but in the block's scales reach codes that an
// encoder would seldom choose. With d = sd / `spread`, and the offset at `min_ratio` times d that centres the
// values, the values have about the standard deviation sd: `spread` is that of the integers (times their
// sub-scales, all uniform over their range).
struct RandomBlock {
  DType type;
  int d_at, min_at;  // bytes from the start of the block; -1: no minimum
  float spread, min_ratio;
};
constexpr RandomBlock kRandomBlocks[] = {
    {DType::kQ4_1, 0, 2, 4.6f, -7.5f},    {DType::kQ5_0, 0, -1, 9.2f, 0.0f},
    {DType::kQ5_1, 0, 2, 9.2f, -15.5f},   {DType::kQ4_K, 0, 2, 258.0f, 7.5f},
    {DType::kQ5_K, 0, 2, 527.0f, 15.5f},  {DType::kQ6_K, 208, -1, 1367.0f, 0.0f},
    {DType::kQ2_K, 80, 82, 13.9f, 1.5f},  {DType::kQ3_K, 108, -1, 43.3f, 0.0f},
    {DType::kIQ4_NL, 0, -1, 67.4f, 0.0f}, {DType::kIQ4_XS, 0, -1, 1246.0f, 0.0f},
};

void fill_blocks(Rng& rng, const RandomBlock& f, float sd, std::vector<std::byte>& bytes) {
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.engine()());
  const auto block = static_cast<size_t>(dtype_info(f.type).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    const float d = sd / f.spread * rng.uniform(0.7f, 1.3f);
    put_half(bytes.data() + at + f.d_at, d);
    if (f.min_at >= 0) put_half(bytes.data() + at + f.min_at, d * f.min_ratio);
  }
}

// Random codes, all but those that are no numbers, of every binade alike.
void fill_fp8(Rng& rng, float sd, std::vector<std::byte>& bytes) {
  constexpr float kSpread = 100.0f;  // of the codes' values
  const auto block = static_cast<size_t>(dtype_info(DType::kFP8).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    const float scale = sd / kSpread * rng.uniform(0.7f, 1.3f);
    std::memcpy(bytes.data() + at, &scale, sizeof scale);
    for (size_t i = at + sizeof scale; i < at + block; ++i) {
      const auto code = static_cast<uint8_t>(rng.engine()());
      bytes[i] = static_cast<std::byte>((code & 0x7f) == 0x7f ? code - 1 : code);
    }
  }
}

}  // namespace

RandomWeight random_weight(Rng& rng, DType dtype, int64_t rows, int64_t cols, int64_t experts, float sd) {
  QUIRE_CHECK(cols % dtype_info(dtype).block_elems == 0, "{} columns do not fill blocks of {}", cols,
              dtype_name(dtype));
  RandomWeight w;
  const int64_t matrix = rows * cols, matrix_bytes = dtype_bytes(dtype, matrix);
  w.bytes.resize(static_cast<size_t>(experts * matrix_bytes));
  const auto* random_block = std::find_if(std::begin(kRandomBlocks), std::end(kRandomBlocks),
                                          [&](const RandomBlock& f) { return f.type == dtype; });
  if (random_block != std::end(kRandomBlocks)) {
    fill_blocks(rng, *random_block, sd, w.bytes);
  } else if (dtype == DType::kFP8) {
    fill_fp8(rng, sd, w.bytes);
  } else {
    std::vector<float> values(static_cast<size_t>(matrix));
    for (int64_t e = 0; e < experts; ++e) {
      for (float& x : values) x = rng.normal(sd);
      std::byte* to = w.bytes.data() + e * matrix_bytes;
      if (dtype == DType::kNVFP4) {
        // Made different on purpose: a kernel that takes another expert's scale must show.
        w.scales.push_back(*quant::nvfp4_tensor_scale(values.data(), matrix) * rng.uniform(1.0f, 2.0f));
        quant::encode_row(dtype, values.data(), matrix,
                          {.search = quant::Search::kNearest, .tensor_scale = w.scales.back()}, to);
      } else {
        quant::encode_row(dtype, values.data(), matrix, to);
      }
    }
  }
  w.weight = {dtype, w.bytes.data(), rows, cols, experts, w.scales.empty() ? nullptr : w.scales.data()};
  return w;
}

std::vector<float> decode_all(const Weight& w) {
  std::vector<float> v(static_cast<size_t>(w.experts * w.rows * w.cols));
  quant::decode_row(w.dtype, w.data, std::ssize(v), v.data());
  return v;
}

std::span<const DType> weight_types() {
  return kWeightTypes;
}

}  // namespace quire::conformance
