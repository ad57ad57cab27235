// The options of the program's commands as a table: for documentation, and for what completes command lines in shells.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire::cli {

struct OptionRow {
  std::vector<std::string> names;  // as they are typed, the usual one first; a position has its name in capitals
  bool positional = false;
  bool takes_value = false;
  bool takes_file = false;
  std::string value;          // what it takes: "INT", "FILE", "model|none|FILE"; empty: a flag
  std::string default_value;  // empty: none, or the help says it
  std::string help, group;
};

// Of a command, in the order of its help.
std::vector<OptionRow> option_rows(const CLI::App& command);

// A table in Markdown of a command's options.
std::string options_markdown(const CLI::App& command);

// What a shell (bash, zsh or fish) has to be told to complete command lines of this program.
Result<std::string> completions(const CLI::App& app, const std::string& shell);

}  // namespace quire::cli
