// What is known of each type that models are computed with, in one row: its reference codec, the fields of its blocks,
// how its values are rounded and how tests make blocks of it. Kernels find what they have of a type in tables that
// are made of these rows (table_by_type). What a new format needs: docs/contributing.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "quant/format.h"

namespace quire::quant {

// Of elems elements, a multiple of the block size.
using Decoder = void (*)(const std::byte* src, int64_t elems, float* dst);
using Encoder = void (*)(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// floats.cpp
void decode_fp8(const std::byte* src, int64_t elems, float* dst);
void decode_f32(const std::byte* src, int64_t elems, float* dst);
void decode_f16(const std::byte* src, int64_t elems, float* dst);
void decode_bf16(const std::byte* src, int64_t elems, float* dst);
void encode_f32(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_f16(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_bf16(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// blocks32.cpp, encode_blocks32.cpp
void decode_q8_0(const std::byte* src, int64_t elems, float* dst);
void decode_q4_0(const std::byte* src, int64_t elems, float* dst);
void decode_q4_1(const std::byte* src, int64_t elems, float* dst);
void decode_q5_0(const std::byte* src, int64_t elems, float* dst);
void decode_q5_1(const std::byte* src, int64_t elems, float* dst);
void encode_q8_0(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q4_0(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q4_1(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q5_0(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q5_1(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// kquants.cpp, encode_kquants.cpp, encode_scaled.cpp
void decode_q2_k(const std::byte* src, int64_t elems, float* dst);
void decode_q3_k(const std::byte* src, int64_t elems, float* dst);
void decode_q4_k(const std::byte* src, int64_t elems, float* dst);
void decode_q5_k(const std::byte* src, int64_t elems, float* dst);
void decode_q6_k(const std::byte* src, int64_t elems, float* dst);
void encode_q3_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q4_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q5_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_q6_k(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// iq4.cpp, encode_iq4.cpp
void decode_iq4_nl(const std::byte* src, int64_t elems, float* dst);
void decode_iq4_xs(const std::byte* src, int64_t elems, float* dst);
void encode_iq4_nl(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

// fp4.cpp, encode_fp4.cpp
void decode_mxfp4(const std::byte* src, int64_t elems, float* dst);
void decode_nvfp4(const std::byte* src, int64_t elems, float* dst);
void encode_mxfp4(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);
void encode_nvfp4(const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst);

struct FormatRow {
  DType type;
  Decoder decode;
  Encoder encode = nullptr;  // null: read only

  // ---- Block formats whose codes are integers, which the integer cores take (ops/gemm/repack.h).
  int unit_blocks = 0;        // of a repacked unit: 64 columns, or what fills up words; 0: not such a format
  int fields[4] = {};         // bytes of each, in the order of the block, where a unit has several
  bool signed_codes = false;  // the last field's bytes are signed

  // ---- What kernels round.
  bool fits_bf16 = false;  // every value is a bf16
  int half_roundings = 0;  // with AMX, to half precision before the one to bf16

  // ---- Blocks for tests.
  // Where the halves of a block lie that scale it, bytes from its start; -1: it has none.
  int scale_at = -1, min_at = -1;
  // Not 0: any other bits are values, of about `spread` times the scale as their standard deviation (that of the
  // integers, times their sub-scales, all uniform over their range), and centred where the minimum is min_ratio times
  // the scale. 0: tests encode.
  float spread = 0;
  float min_ratio = 0;
};

// clang-format off
inline constexpr FormatRow kFormats[] = {
    {.type = DType::kF32, .decode = decode_f32, .encode = encode_f32},
    {.type = DType::kF16, .decode = decode_f16, .encode = encode_f16},
    {.type = DType::kBF16, .decode = decode_bf16, .encode = encode_bf16, .fits_bf16 = true},
    {.type = DType::kQ8_0, .decode = decode_q8_0, .encode = encode_q8_0,
     .unit_blocks = 2, .fields = {2, 32}, .signed_codes = true, .half_roundings = 1, .scale_at = 0},
    {.type = DType::kQ4_0, .decode = decode_q4_0, .encode = encode_q4_0,
     .unit_blocks = 2, .fields = {2, 16}, .half_roundings = 1, .scale_at = 0},
    {.type = DType::kQ4_1, .decode = decode_q4_1, .encode = encode_q4_1,
     .unit_blocks = 2, .fields = {2, 2, 16}, .scale_at = 0, .min_at = 2, .spread = 4.6f, .min_ratio = -7.5f},
    {.type = DType::kQ5_0, .decode = decode_q5_0, .encode = encode_q5_0,
     .unit_blocks = 2, .fields = {2, 4, 16}, .half_roundings = 1, .scale_at = 0, .spread = 9.2f},
    {.type = DType::kQ5_1, .decode = decode_q5_1, .encode = encode_q5_1,
     .unit_blocks = 2, .fields = {2, 2, 4, 16}, .scale_at = 0, .min_at = 2, .spread = 9.2f, .min_ratio = -15.5f},
    {.type = DType::kQ4_K, .decode = decode_q4_k, .encode = encode_q4_k,
     .unit_blocks = 1, .scale_at = 0, .min_at = 2, .spread = 258.0f, .min_ratio = 7.5f},
    {.type = DType::kQ5_K, .decode = decode_q5_k, .encode = encode_q5_k,
     .unit_blocks = 1, .scale_at = 0, .min_at = 2, .spread = 527.0f, .min_ratio = 15.5f},
    {.type = DType::kQ6_K, .decode = decode_q6_k, .encode = encode_q6_k,
     .unit_blocks = 1, .half_roundings = 2, .scale_at = 208, .spread = 1367.0f},
    {.type = DType::kMXFP4, .decode = decode_mxfp4, .encode = encode_mxfp4,
     .unit_blocks = 4, .fields = {1, 16}, .fits_bf16 = true},
    {.type = DType::kNVFP4, .decode = decode_nvfp4, .encode = encode_nvfp4, .unit_blocks = 1, .fits_bf16 = true},
    {.type = DType::kQ2_K, .decode = decode_q2_k,
     .unit_blocks = 1, .scale_at = 80, .min_at = 82, .spread = 13.9f, .min_ratio = 1.5f},
    {.type = DType::kQ3_K, .decode = decode_q3_k, .encode = encode_q3_k,
     .unit_blocks = 1, .scale_at = 108, .spread = 43.3f},
    {.type = DType::kIQ4_NL, .decode = decode_iq4_nl, .encode = encode_iq4_nl,
     .unit_blocks = 2, .fields = {2, 16}, .scale_at = 0, .spread = 67.4f},
    {.type = DType::kIQ4_XS, .decode = decode_iq4_xs, .unit_blocks = 1, .scale_at = 0, .spread = 1246.0f},
    {.type = DType::kFP8, .decode = decode_fp8},
};
// clang-format on

// ---- Tables by type

constexpr bool has_integers(const FormatRow& f) {
  return f.unit_blocks > 0;
}
// Whether kernels for bf16 take it.
constexpr bool rounds_to_bf16(const FormatRow& f) {
  return f.type != DType::kF32 && f.type != DType::kF16;
}

template <class T>
class TableByType {
 public:
  constexpr T& operator[](DType type) { return entries_[static_cast<size_t>(type)]; }
  constexpr const T& operator[](DType type) const { return entries_[static_cast<size_t>(type)]; }

 private:
  std::array<T, 256> entries_{};
};

// make.template operator()<type>() for the types of all rows that are `wanted`, T() for all others. What has no entry
// where it is wanted does not compile.
template <class T, bool (*kWanted)(const FormatRow&), class Make>
constexpr TableByType<T> table_by_type(Make make) {
  TableByType<T> table;
  const auto add = [&]<size_t kRow>() {
    constexpr const FormatRow& row = kFormats[kRow];
    if constexpr (kWanted(row)) table[row.type] = make.template operator()<row.type>();
  };
  const auto add_all = [&]<size_t... kRows>(std::index_sequence<kRows...>) {
    (add.template operator()<kRows>(), ...);
  };
  add_all(std::make_index_sequence<std::size(kFormats)>());
  return table;
}

inline constexpr TableByType<const FormatRow*> kFormatOf = [] {
  TableByType<const FormatRow*> table;
  for (const FormatRow& f : kFormats) table[f.type] = &f;
  return table;
}();
// The row of a type; null: models are not computed with it.
constexpr const FormatRow* find_format(DType type) {
  return kFormatOf[type];
}

}  // namespace quire::quant
