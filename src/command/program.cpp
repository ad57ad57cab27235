#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "command/arguments.h"
#include "command/command.h"
#include "command/ending.h"
#include "command/help.h"
#include "command/hub_flags.h"
#include "command/parse.h"
#include "constraint/compile_host.h"
#include "core/cpu.h"
#include "core/log.h"
#include "core/output.h"

namespace quire::cli {
namespace {

struct ProgramOptions {
  std::string log_level = "warning", cpu;

  void add(Flags& flags);
};

void ProgramOptions::add(Flags& flags) {
  flags.add(Flags::kVersionNames, {}, "Display program version information and exit");
  flags.add("--log-level", &log_level, "what to log on standard error: " + log_level_names());
  flags.add("--cpu LEVEL", &cpu,
            "use no more of this CPU than avx2, avx_vnni, avx512, avx512_bf16 or amx; on ARM than neon, dotprod, i8mm "
            "or bf16");
  flags.footer("quire help COMMAND explains a command's options. docs/operations.md has examples.");
}

// The command's rows and its action once they are filled.
struct Declared {
  explicit Declared(const Command& c) : flags(c.name, c.summary), action(declare(c, flags)) {}

  Flags flags;
  Action action;
};

Status run_arguments(const Program& program, const std::vector<std::string>& given) {
  Flags flags(program.name, program.summary);
  ProgramOptions options;
  options.add(flags);
  QUIRE_TRY(CommandLine line, split_command_line(program, given));
  if (line.neighbour != nullptr) return hand_over(*line.neighbour, line.neighbours_command, given);
  std::optional<Declared> chosen;
  if (line.command != nullptr) chosen.emplace(*line.command);
  std::vector<std::string> arguments = std::move(line.before);
  if (chosen) {
    QUIRE_TRY(std::vector<std::string> rest, prepared_arguments(flags, chosen->flags, line.behind));
    arguments.insert(arguments.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  }
  QUIRE_TRY(const Asked asked,
            chosen ? parse({&flags, &chosen->flags}, std::move(arguments)) : parse({&flags}, std::move(arguments)));
  if (asked == Asked::kVersion) {
    print_out("{} {}\n", program.name, QUIRE_VERSION);
    return {};
  }
  if (asked == Asked::kHelp) {
    write_out(chosen ? help_text(chosen->flags, nullptr, help_width()) : help_text(flags, &program, help_width()));
    return {};
  }
  if (!chosen) return request_error("give a command: {}", fmt::join(command_names(program), ", "));
  QUIRE_CHECKED(set_up_logging(options.log_level));
  if (!options.cpu.empty()) QUIRE_CHECKED(limit_cpu(options.cpu));
  return chosen->action();
}

}  // namespace

Action declare(const Command& command, Flags& flags) {
  Action action = command.add(flags);
  if (!command.takes_hub_models) return action;
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

std::vector<std::unique_ptr<const Flags>> described_commands(const Program& program) {
  std::vector<std::unique_ptr<const Flags>> all;
  for (const Command& c : program.commands) {
    auto flags = std::make_unique<Flags>(c.name, c.summary);
    (void)declare(c, *flags);
    all.push_back(std::move(flags));
  }
  return all;
}

int run_program(const Program& program, int argc, char** argv) {
  if (argc == 2 && argv[1] == kCompileHostCommand) return run_compile_host();
  set_up_ending();
  int code = 0;
  try {
    const Status status = run_arguments(program, {argv + std::min(argc, 1), argv + argc});
    code = status.ok() ? conclusion() : report(status.error());
    // Whoever reads may be missing the end: that is not what was asked for.
    if (const Status written = flush_output(); code == 0 && !written.ok()) code = report(written.error());
  } catch (...) {
    code = report_exception();
  }
  return code;
}

}  // namespace quire::cli
