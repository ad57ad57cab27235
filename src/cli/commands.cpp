#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/ending.h"
#include "cli/help.h"
#include "cli/hub_flags.h"
#include "cli/parse.h"
#include "constraint/compile_host.h"
#include "core/cpu.h"
#include "core/log.h"
#include "core/output.h"

namespace quire::cli {
namespace {

constexpr Command kCommands[] = {
    {"run", "Generate text from a prompt, or chat", add_run},
    {"chat", "Talk with the model of a server", add_chat},
    {"serve", "Answer many users over HTTP: the APIs of OpenAI (chat and Responses), Anthropic and Ollama, and a page",
     add_serve},
    {"localai", "Be a backend of LocalAI, over gRPC", add_localai},
    {"pull", "Fetch a model from a hub into the cache that other tools share", add_pull},
    {"list", "List the models that were fetched from a hub", add_list},
    {"rm", "Remove a model that was fetched from a hub", add_rm},
    {"inspect", "Print what a model file holds, here or on a hub, and whether it would run", add_inspect},
    {"convert", "Turn a Hugging Face model folder into a GGUF file", add_convert},
    {"quantize", "Re-encode the matrices of a model in another type", add_quantize},
    {"imatrix", "Measure which inputs of each matrix matter, for quantize", add_imatrix},
    {"synth", "Write a model of real shapes and random weights, to measure speed with", add_synth},
    {"perplexity", "Measure how well a model predicts a text", add_perplexity},
    {"compare", "Measure how far a model's predictions are from a reference model's", add_compare},
    {"eval", "Count the tasks of a file that a model answers exactly", add_eval},
    {"bench", "Measure a model's speed beside the machine's limits", add_bench},
    {"bench-batch", "Measure prompts and generation of many sequences at once", add_bench_batch},
    {"profile", "Measure what a GPU's time goes to, kernel by kernel", add_profile},
    {"explain", "Say which kernels a model's steps run, why, and the least time they can take", add_explain},
    {"tune", "Measure what decides between a GPU's kernels on the card at hand", add_tune},
    {"bench-serve", "Measure a server of the OpenAI API with many clients", add_bench_serve},
    {"snapshot", "Check and measure everything at once: one JSON file, one HTML page", add_snapshot},
    {"test-ops", "Check every kernel of every operator against its reference", add_test_ops},
    {"tokenize", "Print the tokens of a text, or the text of tokens", add_tokenize},
    {"devices", "List the GPUs that can be used, with their memory and its measured speed", add_devices},
    {"options", "Print the options of a command as a table", add_options},
    {"completions", "Print what a shell needs to complete command lines", add_completions},
    {"version", "Print the version and what this CPU offers", add_version},
};

// Commands whose models may be on a hub. `inspect` asks it by itself, without fetching.
constexpr Action (*kTakingHubModels[])(Flags&) = {
    add_run,   add_serve,       add_quantize, add_imatrix, add_perplexity, add_compare, add_eval,
    add_bench, add_bench_batch, add_profile,  add_explain, add_tokenize,   add_snapshot};

std::string command_names() {
  std::string names;
  for (const Command& c : kCommands) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.name);
  return names;
}

struct ProgramOptions {
  std::string log_level = "warning", cpu;

  void add(Flags& flags);
};

void ProgramOptions::add(Flags& flags) {
  flags.add(Flags::kVersionNames, {}, "Display program version information and exit");
  flags.add("--log-level", &log_level, "what to log on standard error: " + log_level_names());
  flags.add("--cpu LEVEL", &cpu, "use no more of this CPU than avx2, avx_vnni, avx512, avx512_bf16 or amx");
  flags.footer("quire help COMMAND explains a command's options. docs/operations.md has examples.");
}

// The command's rows and its action once they are filled.
struct Declared {
  explicit Declared(const Command& c) : flags(c.name, c.summary), action(declare(c, flags)) {}

  Flags flags;
  Action action;
};

Status run_arguments(std::vector<std::string> given) {
  Flags program("quire", "Quire serves large language models from one GGUF file: fast, and the same text every time.");
  ProgramOptions options;
  options.add(program);
  QUIRE_TRY(CommandLine line, split_command_line(std::move(given)));
  std::optional<Declared> chosen;
  if (line.command != nullptr) chosen.emplace(*line.command);
  std::vector<std::string> arguments = std::move(line.before);
  if (chosen) {
    QUIRE_TRY(std::vector<std::string> rest, prepared_arguments(program, chosen->flags, line.behind));
    arguments.insert(arguments.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  }
  QUIRE_TRY(const Asked asked,
            chosen ? parse({&program, &chosen->flags}, std::move(arguments)) : parse({&program}, std::move(arguments)));
  if (asked == Asked::kVersion) {
    print_out("quire {}\n", QUIRE_VERSION);
    return {};
  }
  if (asked == Asked::kHelp) {
    write_out(chosen ? help_text(chosen->flags, {}, help_width()) : help_text(program, commands(), help_width()));
    return {};
  }
  if (!chosen) return request_error("give a command: {}", command_names());
  QUIRE_CHECKED(set_up_logging(options.log_level));
  if (!options.cpu.empty()) QUIRE_CHECKED(limit_cpu(options.cpu));
  return chosen->action();
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

Action declare(const Command& command, Flags& flags) {
  Action action = command.add(flags);
  if (std::find(std::begin(kTakingHubModels), std::end(kTakingHubModels), command.add) == std::end(kTakingHubModels))
    return action;
  for (const char* const name : kModelFlags)
    if (Flag* const flag = flags.find(name); flag != nullptr)
      flag->more_help(
          "; or [hf:]ORG/NAME[:QUANT|FILE], a model on a hub, or a short name of one that quire list shows");
  const auto hub = std::make_shared<HubFlags>();
  flags.group(Flags::kNoGroup);
  hub->add(flags);
  return [&flags, hub, action = std::move(action)]() -> Status {
    QUIRE_CHECKED(fetch_named_models(*hub, flags));
    return action();
  };
}

std::vector<std::unique_ptr<const Flags>> described_commands() {
  std::vector<std::unique_ptr<const Flags>> all;
  for (const Command& c : commands()) {
    auto flags = std::make_unique<Flags>(c.name, c.summary);
    (void)declare(c, *flags);
    all.push_back(std::move(flags));
  }
  return all;
}

int run_program(int argc, char** argv) {
  if (argc == 2 && argv[1] == kCompileHostCommand) return run_compile_host();
  set_up_ending();
  int code = 0;
  try {
    const Status status = run_arguments({argv + std::min(argc, 1), argv + argc});
    code = status.ok() ? conclusion() : report(status.error());
    // Whoever reads may be missing the end: that is not what was asked for.
    if (const Status written = flush_output(); code == 0 && !written.ok()) code = report(written.error());
  } catch (...) {
    code = report_exception();
  }
  return code;
}

}  // namespace quire::cli
