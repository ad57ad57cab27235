// An output file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

  friend void remove_unfinished_files(void (*each)(const char* name));

  Status write(const void* data, size_t bytes);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  Status commit();

 private:
  // A temporary file, known to remove_unfinished_files() while it is there.
  struct Unfinished;
  static bool enlist(Unfinished* file);
  void forget();

  explicit AtomicFile(std::string path);
  Error failed();
  void discard();

  std::string path_;
  std::unique_ptr<Unfinished> unfinished_;  // null: written in place
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Whether `path` can be created, or written if it is there: for outputs that come at the end of long work. Nothing of it
// is left or changed. The error is that of AtomicFile::create().
Status check_output_file(const std::string& path);

// Removes the temporary files of this process, for when it ends without running destructors: at a signal, out of memory.
// `each`, if not null, is given the final name of each, escaped. Async-signal-safe if `each` is. What commit() is
// renaming at this moment may still appear. A process has at most 1024 unfinished files at a time.
void remove_unfinished_files(void (*each)(const char* name));

// A whole file at once.
Status write_file(const std::string& path, std::string_view text);

}  // namespace quire
