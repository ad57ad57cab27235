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
  struct Unfinished;  // what remove_unfinished_files() knows of one

  // `bytes`, if known: refused at once when the file system has less room. `mode`: who may read and write a new file.
  static Result<AtomicFile> create(std::string path, uint64_t bytes = 0, uint32_t mode = 0666);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Status write(const void* data, size_t bytes);
  Status write(std::string_view text) { return write(text.data(), text.size()); }
  Status commit();

 private:
  explicit AtomicFile(std::string path);
  Error failed();
  void discard();

  std::string path_;
  std::unique_ptr<Unfinished> unfinished_;  // null: written in place
  int fd_ = -1;
  uint64_t written_ = 0;
};

// Removes what processes that were killed left of writing `path`: temporary files beside it that nobody writes any
// more. How many there were.
int remove_abandoned_files(const std::string& path);

// An output that comes at the end of long work: whether it can be written is checked before. While this lives and no
// AtomicFile of the same name has been created, remove_unfinished_files() names it as one that will not be there.
class PlannedOutput {
 public:
  // Whether `path` can be created, or written if it is there. Nothing of it is left or changed. The error is that of
  // AtomicFile::create().
  static Result<PlannedOutput> create(const std::string& path);
  PlannedOutput(PlannedOutput&&) noexcept;
  PlannedOutput& operator=(PlannedOutput&&) = delete;
  ~PlannedOutput();

 private:
  explicit PlannedOutput(const std::string& path);
  std::unique_ptr<AtomicFile::Unfinished> plan_;
};

// Removes the temporary files of this process, for when it ends without running destructors: at a signal, out of
// memory. `each`, if not null, is given the final name, escaped, of every file that will not be there, planned ones
// included; a file that commit() is renaming at this moment is either named or there. Async-signal-safe if `each` is. A
// process has at most 1024 unfinished files and plans at a time.
void remove_unfinished_files(void (*each)(const char* name));

// A whole file at once.
Status write_file(const std::string& path, std::string_view text);

}  // namespace quire
