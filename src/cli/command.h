// What a command of the program is: a name, a line of help, and a function that declares its options and
// returns the action to run once they are parsed. One file per command; commands.cpp lists them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>

#include "core/result.h"

namespace quire::cli {

using Action = std::function<Status()>;

struct Command {
  const char* name;
  const char* summary;
  Action (*add)(CLI::App& app);  // the returned action owns the option values
};

std::span<const Command> commands();

// Declares the command's options. Where its models may be on a hub, also the flags for that, and the action first
// fetches those that are named so. `app` must outlive the action.
Action declare(const Command& command, CLI::App& app);

// Parses the command line and runs the command. Returns the exit code: 0, 1 (a gate of a snapshot failed), 2 (request
// or file), 3 (capacity), 70 (bug).
int run_program(int argc, char** argv);

Action add_bench(CLI::App& app);
Action add_bench_batch(CLI::App& app);
Action add_chat(CLI::App& app);
Action add_convert(CLI::App& app);
Action add_explain(CLI::App& app);
Action add_imatrix(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_eval(CLI::App& app);
Action add_inspect(CLI::App& app);
Action add_list(CLI::App& app);
Action add_pull(CLI::App& app);
Action add_quantize(CLI::App& app);
Action add_profile(CLI::App& app);
Action add_serve(CLI::App& app);
Action add_localai(CLI::App& app);
Action add_bench_serve(CLI::App& app);
Action add_synth(CLI::App& app);
Action add_perplexity(CLI::App& app);
Action add_rm(CLI::App& app);
Action add_run(CLI::App& app);
Action add_snapshot(CLI::App& app);
Action add_tune(CLI::App& app);
Action add_test_ops(CLI::App& app);
Action add_tokenize(CLI::App& app);
Action add_devices(CLI::App& app);
Action add_options(CLI::App& app);
Action add_completions(CLI::App& app);
Action add_version(CLI::App& app);

}  // namespace quire::cli
