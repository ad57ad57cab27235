// The key that a command shows to a server.
#pragma once

#include <string>

#include "core/result.h"

namespace quire::cli {

// The first key of a file as `quire serve --api-key-file` has it.
Result<std::string> first_key(const std::string& path);
// The same; "-" asks at the terminal, which does not show what is typed. One line of visible characters: it becomes a
// header.
Result<std::string> key_for_server(const std::string& path);

}  // namespace quire::cli
