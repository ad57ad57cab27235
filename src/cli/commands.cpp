#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "cli/command.h"
#include "cli/display.h"
#include "core/cpu.h"
#include "core/log.h"

namespace quire::cli {
namespace {

constexpr Command kCommands[] = {
    {"run", "Generate text from a prompt, or chat", add_run},
    {"serve", "Answer many users over HTTP, as the OpenAI API does", add_serve},
    {"inspect", "Print what a model file holds: architecture, metadata, tensors, sizes", add_inspect},
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
    {"bench-serve", "Measure a server of the OpenAI API with many clients", add_bench_serve},
    {"test-ops", "Check every kernel of every operator against its reference", add_test_ops},
    {"tokenize", "Print the tokens of a text, or the text of tokens", add_tokenize},
    {"devices", "List the GPUs that can be used, with their memory and its measured speed", add_devices},
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

std::string command_names() {
  std::string names;
  for (const Command& c : kCommands) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.name);
  return names;
}

// The first argument that is no option must name a command: CLI11 would only say that one is required.
Status check_command_name(std::span<char*> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view a = arguments[i];
    if (a == "--log-level" || a == "--cpu") {
      ++i;  // its value
      continue;
    }
    if (a.starts_with("-")) continue;
    if (std::any_of(std::begin(kCommands), std::end(kCommands),
                    [&](const Command& c) { return a == c.name; }))
      return {};
    return request_error("there is no command '{}'; there are {}", displayable(a, 100), command_names());
  }
  return {};
}

// llama.cpp's short options of several letters: CLI11 would read -np 4 as -n with the value p.
void spell_out(std::span<char*> arguments) {
  struct Spelling {
    std::string_view command, brief;
    char full[16];
  };
  static Spelling spellings[] = {{"serve", "-np", "--parallel"},   {"bench-batch", "-npp", "--npp"},
                                 {"bench-batch", "-ntg", "--ntg"}, {"bench-batch", "-npl", "--npl"},
                                 {"profile", "-npp", "--npp"},     {"profile", "-ntg", "--ntg"},
                                 {"profile", "-npl", "--npl"}};
  const auto given = [&](std::string_view word) {
    return std::any_of(arguments.begin(), arguments.end(), [&](const char* a) { return a == word; });
  };
  for (Spelling& s : spellings) {
    if (!given(s.command)) continue;
    for (char*& a : arguments)
      if (a == s.brief) a = s.full;
  }
}

int report(const Error& e) {
  std::fprintf(stderr, "quire: %s\n", e.message.c_str());
  return exit_code(e.fault);
}

// Model files are mapped, so a disk that fails, or a file cut short while it is in use, is a signal and not
// an error of read(). Temporary files stay: nothing but this line is safe here.
void on_unreadable_page(int) {
  constexpr std::string_view kLine =
      "quire: a file in use was cut short or cannot be read any more; check the disk, copy the file again\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(2);
}

void set_up_signals() {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write(), like a full disk
  std::signal(SIGBUS, on_unreadable_page);
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

int run_program(int argc, char** argv) {
  set_up_signals();
  CLI::App app{"Quire serves large language models from one GGUF file: fast, and the same text every time.",
               "quire"};
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", std::string("quire ") + QUIRE_VERSION);
  app.failure_message(
      [](const CLI::App*, const CLI::Error& e) { return std::string("quire: ") + e.what() + "\n"; });
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "what to log on standard error: " + log_level_names())
      ->capture_default_str();
  std::string cpu;
  app.add_option("--cpu", cpu, "use no more of this CPU than avx2, avx_vnni, avx512, avx512_bf16 or amx")
      ->type_name("LEVEL");
  Action chosen;
  for (const Command& c : commands()) {
    CLI::App* sub = app.add_subcommand(c.name, c.summary);
    sub->fallthrough();  // the program's own options may follow the command
    Action action = c.add(*sub);
    sub->callback([&chosen, action] { chosen = action; });
  }
  const std::span<char*> arguments(argv + 1, static_cast<size_t>(std::max(argc, 1) - 1));
  if (const Status s = check_command_name(arguments); !s.ok()) return report(s.error());
  spell_out(arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (!chosen) return report(request_error("give a command: {}", command_names()));
  Status status = set_up_logging(log_level);
  if (status.ok() && !cpu.empty()) status = limit_cpu(cpu);
  if (status.ok()) status = chosen();
  return status.ok() ? 0 : report(status.error());
}

}  // namespace quire::cli
