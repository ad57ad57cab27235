// What the program makes of its command line before it is parsed: the command, words of other programs, and help for
// what was mistyped.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "command/command.h"

namespace quire::cli {

struct CommandLine {
  const Command* command = nullptr;      // null: none is named, or a neighbour's
  const Neighbour* neighbour = nullptr;  // whose command it is, if it is one's
  std::string neighbours_command;
  std::vector<std::string> before;  // arguments of the program itself, which may also stand behind the command
  std::vector<std::string> behind;
};

// `help COMMAND` becomes `COMMAND --help`. A command that does not exist is an error, but where the program has a usual
// one: that is meant where none is named.
Result<CommandLine> split_command_line(const Program& program, std::vector<std::string> arguments);

// The program's commands, and those of its neighbours.
std::vector<std::string> command_names(const Program& program);

// What follows the command's name, as the parser is given it:
// - underscores in names become dashes, and short names of several letters (-npp) long ones;
// - the model comes first, so that `run hello -m FILE` is what `run FILE hello` is;
// - options of other programs are an error that says for each what to do instead, and so are letters that CLI11 would
//   take for a value (-tp for -t).
Result<std::vector<std::string>> prepared_arguments(const Flags& program, const Flags& command,
                                                    std::span<const std::string> arguments);

// What to say of an argument that the command does not take, with the nearest option that there is. `flags`: the
// program's and, last, the command's.
std::string unexpected_argument(std::span<Flags* const> flags, const std::string& argument);

// The candidate that a typing error of one or two letters might have made `word` of; empty if there is none.
std::string_view nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace quire::cli
