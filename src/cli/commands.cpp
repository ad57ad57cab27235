#include <algorithm>
#include <memory>
#include <sstream>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/ending.h"
#include "cli/help.h"
#include "cli/hub_flags.h"
#include "constraint/compile_host.h"
#include "core/cpu.h"
#include "core/escape.h"
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
constexpr Action (*kTakingHubModels[])(CLI::App&) = {
    add_run,   add_serve,       add_quantize, add_imatrix, add_perplexity, add_compare, add_eval,
    add_bench, add_bench_batch, add_profile,  add_explain, add_tokenize,   add_snapshot};

std::string command_names() {
  std::string names;
  for (const Command& c : kCommands) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.name);
  return names;
}

// What CLI11 prints for --help and --version, or says of a command line that it does not take.
int answer(const CLI::App& app, const CLI::ParseError& e) {
  std::ostringstream out, err;
  if (app.exit(e, out, err) == 0) {
    write_out(out.view());
    return 0;
  }
  return report(request_error("{}", complaint(app, e)));
}

// The exit code of the command line, but for output that could not be written.
int run_arguments(std::vector<std::string> given) {
  CLI::App app{"Quire serves large language models from one GGUF file: fast, and the same text every time.", "quire"};
  app.formatter(std::make_shared<HelpFormatter>(help_width()));
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", std::string("quire ") + QUIRE_VERSION);
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "what to log on standard error: " + log_level_names())
      ->capture_default_str();
  std::string cpu;
  app.add_option("--cpu", cpu, "use no more of this CPU than avx2, avx_vnni, avx512, avx512_bf16 or amx")
      ->type_name("LEVEL");
  check_values(app);
  Action chosen;
  for (const Command& c : commands()) {
    CLI::App* sub = app.add_subcommand(c.name, c.summary);
    sub->fallthrough();  // the program's own options may follow the command
    Action action = declare(c, *sub);
    check_values(*sub);
    sub->callback([&chosen, action] { chosen = action; });
  }
  app.footer("quire help COMMAND explains a command's options. docs/operations.md has examples.");
  Result<std::vector<std::string>> arguments = prepared_arguments(app, std::move(given));
  if (!arguments.ok()) return report(arguments.error());
  try {
    std::reverse(arguments->begin(), arguments->end());  // as CLI11 wants them
    app.parse(*arguments);
  } catch (const CLI::ParseError& e) {
    return answer(app, e);
  }
  if (!chosen) return report(request_error("give a command: {}", command_names()));
  Status status = set_up_logging(log_level);
  if (status.ok() && !cpu.empty()) status = limit_cpu(cpu);
  if (status.ok()) status = chosen();
  return status.ok() ? conclusion() : report(status.error());
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

Action declare(const Command& command, CLI::App& app) {
  Action action = command.add(app);
  if (std::find(std::begin(kTakingHubModels), std::end(kTakingHubModels), command.add) == std::end(kTakingHubModels))
    return action;
  for (const char* const name : {"--model", "models"})
    if (CLI::Option* const o = app.get_option_no_throw(name); o != nullptr)
      o->description(o->get_description() +
                     "; or [hf:]ORG/NAME[:QUANT|FILE], a model on a hub, or a short name of one that "
                     "quire list shows");
  const auto flags = std::make_shared<HubFlags>();
  flags->add(app);
  return [&app, flags, action = std::move(action)]() -> Status {
    QUIRE_CHECKED(fetch_named_models(*flags, app));
    return action();
  };
}

int run_program(int argc, char** argv) {
  if (argc == 2 && argv[1] == kCompileHostCommand) return run_compile_host();
  set_up_ending();
  int code = 0;
  try {
    code = run_arguments({argv + std::min(argc, 1), argv + argc});
    // Whoever reads may be missing the end: that is not what was asked for.
    if (const Status written = flush_output(); code == 0 && !written.ok()) code = report(written.error());
  } catch (...) {
    code = report_exception();
  }
  return code;
}

}  // namespace quire::cli
