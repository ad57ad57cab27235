// The commands `options` and `completions`: a program's options, for documents and for shells.
#include <memory>

#include "command/command.h"
#include "command/man_page.h"
#include "command/options_table.h"
#include "core/escape.h"
#include "core/output.h"
#include "server/limits_file.h"

namespace quire::cli {
namespace {

std::string limits_markdown() {
  std::string text = "| key | unit | default | from, to | |\n|---|---|---|---|---|\n";
  const server::ServeOptions defaults;
  for (const server::Limit& l : server::limits())
    text += fmt::format("| `{}` | {} | {} | {}, {} | {} |\n", l.name, l.unit, l.get(defaults), l.least, l.most, l.help);
  return text;
}

Status print_options(const Program& program, const std::string& name, const std::string& format) {
  if (name == "limits") {
    write_out(limits_markdown());
    return {};
  }
  if (name == program.name && format == "man") {
    write_out(man_page(program));
    return {};
  }
  for (const auto& command : described_commands(program))
    if (command->name() == name) {
      write_out(format == "man"    ? man_page(program, *command)
                : format == "json" ? options_json(*command)
                                   : options_markdown(*command));
      return {};
    }
  if (const Neighbour* const n = neighbour_with(program.neighbours, name); n != nullptr)
    return hand_over(*n, name, {"options", name, "--format", format});
  return request_error("there is no command '{}'; quire help lists them, and limits are the keys of serve's --limits",
                       escaped(name, 60));
}

}  // namespace

Action add_options(Flags& flags, const Program& program) {
  struct Options {
    std::string name, format = "markdown";
  };
  auto o = std::make_shared<Options>();
  flags
      .add("COMMAND", &o->name,
           fmt::format("Whose options; limits: the keys of the file that serve takes with --limits; {}, as a page of "
                       "man: its commands",
                       program.name))
      .required();
  flags.add("--format", chosen_text(&o->format, {{"markdown"}, {"man"}, {"json"}}),
            "markdown: a table; man: a page for man(1); json: rows for other programs");
  return [o, &program] { return print_options(program, o->name, o->format); };
}

Action add_completions(Flags& flags, const Program& program) {
  auto shell = std::make_shared<std::string>();
  flags.add("SHELL", shell.get(), "bash, zsh or fish").required();
  flags.footer(
      fmt::format("bash: {0} completions bash > /etc/bash_completion.d/{0}\n"
                  "zsh:  {0} completions zsh > ~/.zfunc/_{0}, with ~/.zfunc in $fpath\n"
                  "fish: {0} completions fish > ~/.config/fish/completions/{0}.fish",
                  program.name));
  return [shell, &program]() -> Status {
    QUIRE_TRY(const std::string text, completions(program, *shell));
    write_out(text);
    return {};
  };
}

}  // namespace quire::cli
