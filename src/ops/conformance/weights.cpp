// Random weights for the suites.
#include <array>
#include <cstring>

#include "ops/conformance/conformance.h"
#include "quant/format_table.h"

namespace quire::conformance {
namespace {

void put_half(std::byte* at, float x) {
  const half h = to_half(x);
  std::memcpy(at, &h.bits, sizeof h.bits);
}

// Random bits everywhere but in the block's scales reach codes that an encoder would seldom choose. The values have
// about the standard deviation sd.
void fill_blocks(Rng& rng, const quant::FormatRow& f, float sd, std::vector<std::byte>& bytes) {
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.engine()());
  const auto block = static_cast<size_t>(dtype_info(f.type).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    const float d = sd / f.spread * rng.uniform(0.7f, 1.3f);
    put_half(bytes.data() + at + f.scale_at, d);
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
  const quant::FormatRow& format = *quant::find_format(dtype);
  if (format.spread != 0) {
    fill_blocks(rng, format, sd, w.bytes);
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
  static constexpr auto kTypes = [] {
    std::array<DType, std::size(quant::kFormats)> types{};
    for (size_t i = 0; i < types.size(); ++i) types[i] = quant::kFormats[i].type;
    return types;
  }();
  return kTypes;
}

}  // namespace quire::conformance
