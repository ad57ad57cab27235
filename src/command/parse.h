// Parsing a command line into the members of flags. CLI11 does it, which adds five seconds to the compilation of every
// file that sees it: parse.cpp is the only one.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "command/flags.h"

namespace quire::cli {

enum class Asked { kAction, kHelp, kVersion };

// Fills the members of the flags: of the program alone, or of the program and its command. Errors say in our words what
// of the arguments is wrong.
Result<Asked> parse(std::initializer_list<Flags*> flags, std::vector<std::string> arguments);

}  // namespace quire::cli
