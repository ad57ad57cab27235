// The limits of a server that few operators change, from a file (`quire serve --limits FILE`): those of connections, of
// one request, and of the prefix cache's states. docs/server.md has the table, which is made from limits().
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/serve.h"

namespace quire::server {

// One key of the file.
struct Limit {
  std::string_view name;
  std::string_view unit;  // "s", "bytes", or empty: a number of things
  double least, most;     // the range, both included; whole numbers unless the unit is "s"
  std::string_view help;
  double (*get)(const ServeOptions&);
  void (*set)(ServeOptions&, double);
};
std::span<const Limit> limits();

// Reads a JSON object such as {"idle_timeout": 120, "max_n": 4} into the options; keys that it does not have stay as
// they are. A request error names the file, the key, and what it must be.
Status read_limits(const std::string& path, ServeOptions& to);

}  // namespace quire::server
