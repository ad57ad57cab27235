// What a program's commands are: for each a name, a line of help, and a function that declares its options and returns
// the action to run once they are parsed. One file per command; the program's commands.cpp lists them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "command/doors.h"
#include "command/flags.h"
#include "core/result.h"

namespace quire::cli {

using Action = std::function<Status()>;

struct Command {
  const char* name;
  const char* summary;
  Action (*add)(Flags& flags);    // the returned action owns the option values
  bool takes_hub_models = false;  // its models may be on a hub, and are fetched first
};

struct Program {
  const char* name;
  const char* summary;
  std::span<const Command> commands;
  std::span<const Neighbour> neighbours = {};
  const char* usual = nullptr;  // the command that is meant where the first word is none; null: there is no such
};

// Declares the command's options. Where its models may be on a hub, also the flags for that, and the action first
// fetches those that are named so. `flags` must outlive the action.
Action declare(const Command& command, Flags& flags);

// All commands with their rows, to be looked at and not to be parsed into.
std::vector<std::unique_ptr<const Flags>> described_commands(const Program& program);

// Parses the command line and runs the command. Returns the exit code: 0, 1 (a gate of a snapshot failed), 2 (request
// or file), 3 (capacity), 70 (bug).
int run_program(const Program& program, int argc, char** argv);

// Commands of several programs.
Action add_options(Flags& flags, const Program& program);
Action add_completions(Flags& flags, const Program& program);

}  // namespace quire::cli
