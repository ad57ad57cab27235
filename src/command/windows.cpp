#include "command/windows.h"

#include <algorithm>

namespace quire::cli {

void WindowOptions::add(Flags& flags) {
  flags.add("--window", &window, "Tokens per window; each starts from an empty state");
  flags.add("--windows,--max-windows,--chunks", &windows, "Only the first so many windows; 0: all");
}

Status WindowOptions::check() const {
  if (window < 2) return request_error("--window {}: a window has at least 2 tokens", window);
  if (windows < 0) return request_error("--windows {}: must be 0 (all) or more", windows);
  return {};
}

Result<int64_t> WindowOptions::count(const std::string& name, int64_t tokens) const {
  const int64_t available = tokens / window;
  if (available == 0)
    return request_error("{}: the text has {} tokens, less than a window of {}; give a longer one, or --window",
                         name == "-" ? "standard input" : name, tokens, window);
  return windows > 0 ? std::min(windows, available) : available;
}

}  // namespace quire::cli
