// What a command of the program is: a name, a line of help, and a function that declares its options and
// returns the action to run once they are parsed. One file per command; commands.cpp lists them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cli/flags.h"
#include "core/result.h"

namespace quire::cli {

using Action = std::function<Status()>;

struct Command {
  const char* name;
  const char* summary;
  Action (*add)(Flags& flags);  // the returned action owns the option values
};

std::span<const Command> commands();

// Declares the command's options. Where its models may be on a hub, also the flags for that, and the action first
// fetches those that are named so. `flags` must outlive the action.
Action declare(const Command& command, Flags& flags);

// All commands with their rows, to be looked at and not to be parsed into.
std::vector<std::unique_ptr<const Flags>> described_commands();

// Parses the command line and runs the command. Returns the exit code: 0, 1 (a gate of a snapshot failed), 2 (request
// or file), 3 (capacity), 70 (bug).
int run_program(int argc, char** argv);

Action add_bench(Flags& flags);
Action add_bench_batch(Flags& flags);
Action add_chat(Flags& flags);
Action add_convert(Flags& flags);
Action add_explain(Flags& flags);
Action add_imatrix(Flags& flags);
Action add_compare(Flags& flags);
Action add_eval(Flags& flags);
Action add_inspect(Flags& flags);
Action add_list(Flags& flags);
Action add_pull(Flags& flags);
Action add_quantize(Flags& flags);
Action add_profile(Flags& flags);
Action add_serve(Flags& flags);
Action add_localai(Flags& flags);
Action add_bench_serve(Flags& flags);
Action add_synth(Flags& flags);
Action add_perplexity(Flags& flags);
Action add_rm(Flags& flags);
Action add_run(Flags& flags);
Action add_snapshot(Flags& flags);
Action add_tune(Flags& flags);
Action add_test_ops(Flags& flags);
Action add_tokenize(Flags& flags);
Action add_devices(Flags& flags);
Action add_options(Flags& flags);
Action add_completions(Flags& flags);
Action add_version(Flags& flags);

}  // namespace quire::cli
