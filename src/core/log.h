// Logging to standard error, so that standard output carries results only. The program sets the level once.
// spdlog stays behind this header.
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

// Any thread. Escaped (core/escape.h): a message is one line, whatever it quotes.
void log_error(std::string_view message);
void log_warning(std::string_view message);
void log_info(std::string_view message);

}  // namespace quire
