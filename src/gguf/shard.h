// Parsing of one GGUF file (a whole model, or one shard of a split one) from memory.
// Source: the GGUF description of ggml, versions 2 and 3, little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/result.h"
#include "gguf/metadata.h"

namespace quire::gguf {

inline constexpr uint32_t kDefaultAlignment = 32;
inline constexpr uint32_t kMinAlignment = 8;  // so that f32 and i64 payloads may be read in place
inline constexpr uint32_t kMaxAlignment = 1 << 20;
inline constexpr int kMaxDims = 4;
inline constexpr size_t kMaxTensorName = 255;  // the format's own limit is 63
inline constexpr size_t kMaxKey = 65535;

// A tensor as it lies in the file. All of it stays valid as long as the file is open.
struct TensorInfo {
  std::string_view name;
  DType dtype = DType::kF32;
  int n_dims = 0;                           // as written: 0 (a scalar) to 4
  std::array<int64_t, 4> dims{1, 1, 1, 1};  // ne order: dims[0] is contiguous; padded with ones
  const std::byte* data = nullptr;          // aligned to at least 8 bytes
  int64_t bytes = 0;
  int shard = 0;

  int64_t elems() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  int64_t rows() const { return dims[1] * dims[2] * dims[3]; }  // each of dims[0] elements
  int64_t row_bytes() const { return dtype_bytes(dtype, dims[0]); }
};

// "[4096, 14336]": the dims as written, dims[0] first.
std::string shape_text(const TensorInfo& t);

struct Shard {
  uint32_t version = 0;
  uint64_t alignment = kDefaultAlignment;
  uint64_t data_begin = 0;  // first byte of the data section; the end of the metadata if there are no tensors
  uint64_t file_bytes = 0;
  Metadata metadata;
  std::vector<TensorInfo> tensors;  // in file order; names are unique, payloads are in bounds and do not overlap
};

// Checks everything that can be checked without knowing the architecture. `bytes` must start on an 8-byte
// boundary and outlive the result. Memory used is proportional to the bytes really there, time to n log n of
// them.
Result<Shard> parse_shard(std::span<const std::byte> bytes, int shard_index);

}  // namespace quire::gguf
