// Options of other programs' command lines that people type: what to write here instead, or why nothing is needed.
#pragma once

#include <span>
#include <string_view>

namespace quire::cli {

struct ForeignOption {
  std::string_view commands;  // that it is looked up for, with blanks between them
  std::string_view program;   // whose option it is: llama.cpp, vLLM, SGLang
  std::string_view names;     // long and short, with blanks between them
  std::string_view instead;   // a sentence; every option that it names is one of these commands
};

// A sentence that its test holds against the program: neither a flag nor a route nor a field of a request has the name.
inline constexpr std::string_view kNothingLikeIt = "there is nothing like it here";

// All of them, the first that fits being meant. Options that a command has itself need no entry.
std::span<const ForeignOption> foreign_options();

// Whether the entry is for this command.
bool is_for(const ForeignOption& option, std::string_view command);

// The entry for `name` ("--enforce-eager", "-tp", "--compilation-config.level", "-O3") or null. A name with `--no-` in
// front is what it is without.
const ForeignOption* find_foreign(std::string_view command, std::string_view name);

}  // namespace quire::cli
