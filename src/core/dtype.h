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
  kFP8 = 254,     // E4M3 of a checkpoint with its scales: a float32 and the 128 codes that it scales (quant/floats.cpp)
  kF8E4M3 = 255,  // codes of one byte in KV caches
};

struct DTypeInfo {
  DType type;
  std::string_view name;  // lower case, as in `--type`: "q8_0", "nvfp4", "bf16"
  int block_elems;        // elements per block
  int block_bytes;        // bytes per block
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
inline std::string_view dtype_name(DType t) {
  return dtype_info(t).name;
}

// Bytes of `elems` elements (a multiple of the block size).
inline int64_t dtype_bytes(DType t, int64_t elems) {
  const DTypeInfo& i = dtype_info(t);
  return elems / i.block_elems * i.block_bytes;
}

}  // namespace quire
