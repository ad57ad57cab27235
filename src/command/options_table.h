// The options of a program's commands as a table: for documentation, and for what completes command lines in shells.
#pragma once

#include <string>

#include "command/command.h"

namespace quire::cli {

// A table in Markdown of a command's rows, in the order of its help.
std::string options_markdown(const Flags& command);

// The same as JSON: {"command": "serve", "options": [{"names": ["-m", "--model"], "takes": "FILE", ...}]}. A row has
// `choices`, `least` and `most`, `default` and `position` where there are such.
std::string options_json(const Flags& command);

// Whether what the flag takes is the name of a file or folder.
bool takes_file(const Flag& flag);

// What a shell (bash, zsh or fish) has to be told to complete command lines of the program. Of its neighbours' commands
// it knows the names: their options are their program's to tell.
Result<std::string> completions(const Program& program, const std::string& shell);

}  // namespace quire::cli
