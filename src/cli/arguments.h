// What the program makes of its command line before and after CLI11 parses it: values that are checked as a whole, words of
// other programs, and help for what was mistyped.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire::cli {

// Every number that the command's options take is one, in decimal and within its type's range (CLI11 would saturate, and
// read 010 as eight); every text has a character, but where an empty one means something.
void check_values(CLI::App& command);

// The arguments after the program's name as CLI11 is given them: `help COMMAND` becomes `COMMAND --help`, and short options
// of several letters that this program knows (-npp) become long ones. An error for a command that does not exist.
Result<std::vector<std::string>> prepared_arguments(std::vector<std::string> arguments);

// Options of llama.cpp that mean something else to the command, or nothing: an error that says what to do instead.
Status check_habits(const CLI::App& command, const std::vector<std::string>& arguments);

// CLI11's complaint about a command line, in our words: an unknown option with the nearest that there is.
std::string complaint(const CLI::App& app, const CLI::ParseError& e);

// The candidate that a typing error of one or two letters might have made `word` of; empty if there is none.
std::string_view nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace quire::cli
