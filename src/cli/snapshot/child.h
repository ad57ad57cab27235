// A program that is run beside this one and talked to in lines.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire::cli::snapshot {

class Child {
 public:
  enum class Errors { kShown, kDropped };  // what it says on standard error

  // The program is searched for as a shell does it; no shell is involved.
  static Result<std::unique_ptr<Child>> start(const std::vector<std::string>& command, Errors errors = Errors::kShown);
  // Closes its input, and ends it if it is still there.
  ~Child();
  Child(const Child&) = delete;

  // False if it no longer reads.
  bool write_line(std::string_view line);
  // Without its end; nothing after the last one, or where one has more than 16 MiB.
  std::optional<std::string> read_line();
  // Closes its input and waits for its end: the exit code, or 128 and the number of the signal that ended it.
  int wait();

 private:
  Child(pid_t pid, int in, int out) : pid_(pid), in_(in), out_(out) {}

  pid_t pid_;
  int in_, out_;  // its standard input and output
  std::string buffer_;
};

}  // namespace quire::cli::snapshot
