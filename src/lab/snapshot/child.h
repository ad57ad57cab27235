// A program that is run beside this one, without input, and read line by line.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire::cli::snapshot {

class Child {
 public:
  enum class Errors { kShown, kDropped };  // what it says on standard error

  // The program is searched for as a shell does it; no shell is involved.
  static Result<std::unique_ptr<Child>> start(const std::vector<std::string>& command, Errors errors = Errors::kShown);
  // Ends it if it is still there.
  ~Child();
  Child(const Child&) = delete;

  // Without its end; nothing after the last one, or where one has more than 16 MiB.
  std::optional<std::string> read_line();
  // Waits for its end: the exit code, or 128 and the number of the signal that ended it.
  int wait();

 private:
  Child(pid_t pid, int out) : pid_(pid), out_(out) {}

  pid_t pid_;
  int out_;  // its standard output
  std::string buffer_;
};

}  // namespace quire::cli::snapshot
