#include "core/result.h"

#include <execinfo.h>

#include <cstdio>
#include <cstdlib>

#include "core/atomic_file.h"

namespace quire {

void fatal(const char* file, int line, std::string_view message) {
  std::fprintf(stderr, "quire: internal error at %s:%d: %.*s\n", file, line, static_cast<int>(message.size()),
               message.data());
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
  remove_unfinished_files(nullptr);
  std::abort();
}

}  // namespace quire
