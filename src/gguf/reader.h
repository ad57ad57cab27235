// Reading a GGUF model: one file, or a split one with its shards merged. See gguf/shard.h for what is
// checked, and gguf/metadata.h for the typed getters that File inherits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "gguf/mapping.h"
#include "gguf/metadata.h"
#include "gguf/name_index.h"
#include "gguf/shard.h"

namespace quire::gguf {

// An open model file. Everything it hands out (strings, tensor payloads) points into its mappings and is
// valid as long as the File lives; moving it keeps them valid. Reading is thread-safe. The metadata is that
// of the first shard; the others carry only their place in the split.
class File : public Metadata {
 public:
  struct ShardInfo {
    std::string path;  // empty when parsed from memory
    uint32_t version = 0;
    uint64_t bytes = 0;
    uint64_t alignment = 0;
    uint64_t data_begin = 0;
    size_t tensors = 0;
  };

  // Opens `path`; if it is the first shard of a split model, also its siblings "<prefix>-00002-of-00003.gguf"
  // and so on. Another shard than the first is refused, with the name of the one to open. Errors begin with
  // the path.
  static Result<File> open(const std::string& path);

  // The same from memory: all shards in order. The bytes must start on 8-byte boundaries and outlive the
  // File.
  static Result<File> parse(std::span<const std::span<const std::byte>> shards);
  static Result<File> parse(std::span<const std::byte> bytes) { return parse(std::span(&bytes, 1)); }

  // What is no file: metadata of `head` (the bytes of a file without tensors, as Writer::head() gives them) and tensors
  // whose payloads lie anywhere. `owner` keeps alive what head, names and payloads point into. `made_bytes` of the
  // payloads are this process's own memory, the others mapped files. Counts as one shard with the path `path`.
  static Result<File> assemble(const std::string& path, std::span<const std::byte> head,
                               std::vector<TensorInfo> tensors, int64_t made_bytes, std::shared_ptr<const void> owner);

  std::span<const ShardInfo> shards() const { return shards_; }
  std::span<const TensorInfo> tensors() const { return tensors_; }  // shard after shard, in file order
  const TensorInfo* find_tensor(std::string_view name) const;
  Result<const TensorInfo*> get_tensor(std::string_view name) const;  // an error that names it if it is missing

  uint64_t mapped_bytes() const;                        // sum over all shards, with what assemble() was told is made
  bool assembled() const { return owner_ != nullptr; }  // no file, but of assemble()
  int64_t made_bytes() const { return made_bytes_; }    // of these, in memory of this process; of files 0
  int64_t tensor_bytes() const;                         // sum of the payloads
  void prefetch() const;                                // asks the kernel to start reading all shards; returns at once

 private:
  static Result<File> merge(std::vector<Shard> shards);

  std::vector<Mapping> mappings_;
  std::shared_ptr<const void> owner_;  // of what was assembled
  int64_t made_bytes_ = 0;
  std::vector<ShardInfo> shards_;
  std::vector<TensorInfo> tensors_;
  NameIndex by_name_;
};

// "m-00002-of-00003.gguf" for prefix "m", index 1 (from 0), count 3.
std::string shard_path(std::string_view prefix, uint32_t index, uint32_t count);

}  // namespace quire::gguf
