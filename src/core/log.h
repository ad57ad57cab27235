// Logging: spdlog to standard error, so that standard output carries results only. Library code calls
// spdlog::info and friends; the program sets the level once.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire {

// The names that --log-level accepts: "trace, debug, info, warning, error, off".
std::string log_level_names();

// Standard error, "[12:34:56.789] [warning] ..." coloured on a terminal. Default level of the program:
// warning. An unknown name is a request error that lists the known ones.
Status set_up_logging(std::string_view level);

}  // namespace quire
