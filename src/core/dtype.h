// Element and block types (shared by files, tensors and kernels). Those that files hold are numbered as in GGUF.
// Source: the ggml type table; sizes are per block along the fastest dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

enum class DType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
  // GGUF has no such types, and no file can name them:
  kFP8 = 254,     // E4M3 of a model folder with scales: a float32 and the 128 codes that it scales (quant/floats.cpp)
  kF8E4M3 = 255,  // codes of one byte in KV caches
};

struct DTypeInfo {
  DType type;
  std::string_view name;  // lower case, as in `--type`: "q8_0", "nvfp4", "bf16"
  int block_elems;        // elements per block
  int block_bytes;        // bytes per block
};

// A row for each; those that only memory holds come last.
inline constexpr DTypeInfo kDTypes[] = {
    {DType::kF32, "f32", 1, 4},
    {DType::kF16, "f16", 1, 2},
    {DType::kQ4_0, "q4_0", 32, 18},
    {DType::kQ4_1, "q4_1", 32, 20},
    {DType::kQ5_0, "q5_0", 32, 22},
    {DType::kQ5_1, "q5_1", 32, 24},
    {DType::kQ8_0, "q8_0", 32, 34},
    {DType::kQ8_1, "q8_1", 32, 36},
    {DType::kQ2_K, "q2_k", 256, 84},
    {DType::kQ3_K, "q3_k", 256, 110},
    {DType::kQ4_K, "q4_k", 256, 144},
    {DType::kQ5_K, "q5_k", 256, 176},
    {DType::kQ6_K, "q6_k", 256, 210},
    {DType::kQ8_K, "q8_k", 256, 292},
    {DType::kIQ2_XXS, "iq2_xxs", 256, 66},
    {DType::kIQ2_XS, "iq2_xs", 256, 74},
    {DType::kIQ3_XXS, "iq3_xxs", 256, 98},
    {DType::kIQ1_S, "iq1_s", 256, 50},
    {DType::kIQ4_NL, "iq4_nl", 32, 18},
    {DType::kIQ3_S, "iq3_s", 256, 110},
    {DType::kIQ2_S, "iq2_s", 256, 82},
    {DType::kIQ4_XS, "iq4_xs", 256, 136},
    {DType::kI8, "i8", 1, 1},
    {DType::kI16, "i16", 1, 2},
    {DType::kI32, "i32", 1, 4},
    {DType::kI64, "i64", 1, 8},
    {DType::kF64, "f64", 1, 8},
    {DType::kIQ1_M, "iq1_m", 256, 56},
    {DType::kBF16, "bf16", 1, 2},
    {DType::kTQ1_0, "tq1_0", 256, 54},
    {DType::kTQ2_0, "tq2_0", 256, 66},
    {DType::kMXFP4, "mxfp4", 32, 17},
    {DType::kNVFP4, "nvfp4", 64, 36},
    {DType::kQ1_0, "q1_0", 128, 18},
    {DType::kQ2_0, "q2_0", 64, 18},
    {DType::kFP8, "fp8", 128, 132},
    {DType::kF8E4M3, "f8_e4m3", 1, 1},
};

// The entry for a GGUF type id, or nothing if the id is retired or unknown. Both know the types of files alone.
std::optional<DTypeInfo> find_dtype(uint32_t gguf_id);
std::optional<DTypeInfo> find_dtype(std::string_view name);  // "q4_k", in any case
// Whether only memory holds it.
constexpr bool is_memory_type(DType t) {
  return t >= DType::kFP8;
}
// For a type that is known to exist (one that came out of find_dtype or is written in the code).
const DTypeInfo& dtype_info(DType t);
// The same where a constant is wanted: a loop over the table.
constexpr const DTypeInfo& constant_dtype_info(DType t) {
  const DTypeInfo* i = kDTypes;
  while (i->type != t) ++i;
  return *i;
}
inline std::string_view dtype_name(DType t) {
  return dtype_info(t).name;
}

// Bytes of `elems` elements (a multiple of the block size).
inline int64_t dtype_bytes(DType t, int64_t elems) {
  const DTypeInfo& i = dtype_info(t);
  return elems / i.block_elems * i.block_bytes;
}

}  // namespace quire
