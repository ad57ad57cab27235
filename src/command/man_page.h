// Pages for man(1), from the rows of a program's commands.
#pragma once

#include <string>

#include "command/command.h"

namespace quire::cli {

// Of a command: quire-serve(1), in roff's man macros.
std::string man_page(const Program& program, const Flags& command);
// Of the program: what it is, and its commands and neighbours'.
std::string man_page(const Program& program);

}  // namespace quire::cli
