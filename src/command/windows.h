// How a text is cut for commands that run a model over it: consecutive windows that do not overlap, the incomplete last
// one dropped.
#pragma once

#include <cstdint>
#include <string>

#include "command/flags.h"

namespace quire::cli {

struct WindowOptions {
  int64_t window = 512;  // tokens
  int64_t windows = 0;   // only the first so many; 0: all

  // --window and --windows; the latter is also known as --max-windows and --chunks.
  void add(Flags& flags);
  Status check() const;
  // How many windows a text of `tokens` has. An error if there is none: `name` is the text's.
  Result<int64_t> count(const std::string& name, int64_t tokens) const;
};

}  // namespace quire::cli
