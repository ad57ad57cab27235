#include <cstdio>

#include "cli/command.h"
#include "core/log.h"

namespace quire::cli {
namespace {

constexpr Command kCommands[] = {
    {"run", "Generate text from a prompt, or chat", add_run},
    {"inspect", "Print what a model file holds: architecture, metadata, tensors, sizes", add_inspect},
    {"quantize", "Re-encode the matrices of a model in another type", add_quantize},
    {"synth", "Write a model of real shapes and random weights, to measure speed with", add_synth},
    {"perplexity", "Measure how well a model predicts a text", add_perplexity},
    {"bench", "Measure a model's speed beside the machine's limits", add_bench},
    {"test-ops", "Check every kernel of every operator against its reference", add_test_ops},
    {"tokenize", "Print the tokens of a text, or the text of tokens", add_tokenize},
    {"version", "Print the version and what this CPU offers", add_version},
};

int exit_code(Fault fault) {
  switch (fault) {
    case Fault::kRequest:
    case Fault::kModelFile:
      return 2;
    case Fault::kCapacity:
      return 3;
    case Fault::kBug:
      return 70;
  }
  return 70;
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

int run_program(int argc, char** argv) {
  CLI::App app{"Quire serves large language models from one GGUF file: fast, and the same text every time.",
               "quire"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("quire ") + QUIRE_VERSION);
  app.failure_message(
      [](const CLI::App*, const CLI::Error& e) { return std::string("quire: ") + e.what() + "\n"; });
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "what to log on standard error: " + log_level_names())
      ->capture_default_str();
  Action chosen;
  for (const Command& c : commands()) {
    CLI::App* sub = app.add_subcommand(c.name, c.summary);
    sub->fallthrough();  // the program's own options may follow the command
    Action action = c.add(*sub);
    sub->callback([&chosen, action] { chosen = action; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  Status status = set_up_logging(log_level);
  if (status.ok()) status = chosen();
  if (status.ok()) return 0;
  std::fprintf(stderr, "quire: %s\n", status.error().message.c_str());
  return exit_code(status.error().fault);
}

}  // namespace quire::cli
