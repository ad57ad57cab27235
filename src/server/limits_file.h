// The limits of a server that few operators change, from a file (`quire serve --limits FILE`): those of connections, of
// one request, and of the prefix cache's states. docs/server-limits.md has the table, which is made from limits().
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "server/serve.h"

namespace quire::server {

// Where a limit stands among the options.
using LimitOption = std::variant<std::chrono::milliseconds*, int*, int64_t*, size_t*>;

// One key of the file.
struct Limit {
  std::string_view name;
  std::string_view unit;  // "s", "bytes", or empty: a number of things
  double least, most;     // the range, both included; whole numbers unless the unit is "s"
  LimitOption (*option)(ServeOptions&);
  std::string_view help;

  double get(const ServeOptions& o) const;
  void set(ServeOptions& o, double v) const;
};
std::span<const Limit> limits();

// Reads a JSON object such as {"idle_timeout": 120, "max_n": 4} into the options; keys that it does not have stay as
// they are. A request error names the file, the key, and what it must be.
Status read_limits(const std::string& path, ServeOptions& to);

}  // namespace quire::server
