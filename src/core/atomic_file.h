// An output file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace quire {

// The bytes go to a temporary file beside `path`, which commit() syncs and renames; without commit() it is
// removed. A path that exists and is no regular file (/dev/stdout, a pipe) is written in place. What cannot
// be created or written, a full disk too, is Fault::kRequest.
class AtomicFile {
 public:
  // `bytes`, if known: refused at once when the file system has less room. `mode`: who may read and write a new file.
  static Result<AtomicFile> create(std::string path, uint64_t bytes = 0, uint32_t mode = 0666);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status write(const void* data, size_t bytes);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  Status commit();

 private:
  explicit AtomicFile(std::string path) : path_(std::move(path)) {}
  Error failed();
  void discard();

  std::string path_, temporary_;  // no temporary: written in place
  int fd_ = -1;
  uint64_t written_ = 0;
};

// A whole file at once.
Status write_file(const std::string& path, std::string_view text);

}  // namespace quire
