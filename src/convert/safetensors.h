// Reading safetensors: a table of named, typed, row-major tensors in one file or several.
// Source: the safetensors format description; the checks are those of its reference readers, and a few more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "gguf/mapping.h"
#include "gguf/name_index.h"

namespace quire::convert {

enum class Element : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};
std::string_view element_name(Element e);  // as in the file: "BF16"
int element_bytes(Element e);

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference readers
inline constexpr size_t kMaxRank = 8;
inline constexpr size_t kMaxSourceName = 1024;

struct SourceTensor {
  std::string name;
  Element element = Element::kF32;
  std::vector<int64_t> shape;       // row-major, shape[0] slowest; empty: a scalar
  std::span<const std::byte> data;  // unaligned; into the file's bytes
  int file = 0;                     // index in FolderWeights::files()

  int64_t elems() const;
};
std::string shape_text(const SourceTensor& t);  // "[4096, 256]"

// All tensors of one file, in order of their data. `bytes` must outlive the result. Refused: a header that is
// larger than the file or the limit, that is no JSON, or that nests, repeats or adds anything; unknown types;
// shapes that overflow or disagree with their offsets; data that overlaps, leaves holes, or ends before or
// behind the file's end.
Result<std::vector<SourceTensor>> parse_safetensors(std::span<const std::byte> bytes);

// The weights of a model folder: model.safetensors, or the files that model.safetensors.index.json lists.
class FolderWeights {
 public:
  // Errors begin with the path of the file at fault.
  static Result<FolderWeights> open(const std::string& folder);
  // From memory, for tests: one file.
  static Result<FolderWeights> parse(std::span<const std::byte> bytes);

  std::span<const SourceTensor> tensors() const { return tensors_; }
  const SourceTensor* find(std::string_view name) const;
  std::span<const std::string> files() const { return files_; }
  const std::string& file_of(const SourceTensor& t) const { return files_[static_cast<size_t>(t.file)]; }
  uint64_t bytes() const;  // of all tensors
  void prefetch() const;   // asks the kernel to start reading all files; returns at once

 private:
  Status add(const std::string& path, std::span<const std::byte> bytes);
  Status index();

  std::vector<gguf::Mapping> mappings_;
  std::vector<std::string> files_;
  std::vector<SourceTensor> tensors_;
  gguf::NameIndex by_name_;
};

// The file names that an index lists, in order of name, each a plain name ending in .safetensors; and, for
// each tensor in order of name, which of them holds it.
struct ShardIndex {
  std::vector<std::string> files;
  std::vector<std::pair<std::string, int>> tensors;
};
Result<ShardIndex> parse_shard_index(std::string_view json);

}  // namespace quire::convert
