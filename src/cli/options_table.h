// The options of the program's commands as a table: for documentation, and for what completes command lines in shells.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "cli/flags.h"

namespace quire::cli {

// A table in Markdown of a command's rows, in the order of its help.
std::string options_markdown(const Flags& command);

// Whether what the flag takes is the name of a file or folder.
bool takes_file(const Flag& flag);

// What a shell (bash, zsh or fish) has to be told to complete command lines of this program.
Result<std::string> completions(std::span<const std::unique_ptr<const Flags>> commands, const std::string& shell);

}  // namespace quire::cli
