// What the program makes of its command line before and after CLI11 parses it: values that are checked as a whole,
// words of other programs, and help for what was mistyped.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire::cli {

// Every number that the command's options take is one, in decimal and within its type's range (CLI11 would saturate,
// and read 010 as eight), and a whole one may end in a letter (core/count.h); every text has a character, but where an
// empty one means something.
void check_values(CLI::App& command);

// The arguments after the program's name as CLI11 is given them:
// - `help COMMAND` becomes `COMMAND --help`; an error for a command that does not exist;
// - underscores in names become dashes, and short options of several letters that this program knows (-npp) long ones;
// - the model comes first, so that `run hello -m FILE` is what `run FILE hello` is;
// - options of other programs are an error that says for each what to do instead, and so are letters that CLI11 would
// take
//   for a value (-tp for -t).
Result<std::vector<std::string>> prepared_arguments(const CLI::App& app, std::vector<std::string> arguments);

// The short names of several letters that a command's option has besides those that CLI11 knows: "-np" of --parallel.
std::vector<std::string_view> brief_names(std::string_view command, std::string_view option);

// CLI11's complaint about a command line, in our words: an unknown option with the nearest that there is.
std::string complaint(const CLI::App& app, const CLI::ParseError& e);

// The candidate that a typing error of one or two letters might have made `word` of; empty if there is none.
std::string_view nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace quire::cli
