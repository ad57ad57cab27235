// quire options and quire completions: the program's options, for documents and for shells.
#include <memory>

#include "cli/command.h"
#include "cli/options_table.h"
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

Status print_options(const std::string& name) {
  if (name == "limits") {
    write_out(limits_markdown());
    return {};
  }
  for (const auto& command : described_commands())
    if (command->name() == name) {
      write_out(options_markdown(*command));
      return {};
    }
  return request_error("there is no command '{}'; quire help lists them, and limits are the keys of serve's --limits",
                       escaped(name, 60));
}

}  // namespace

Action add_options(Flags& flags) {
  auto name = std::make_shared<std::string>();
  flags.add("COMMAND", name.get(), "Whose options; limits: the keys of the file that serve takes with --limits")
      .required();
  return [name] { return print_options(*name); };
}

Action add_completions(Flags& flags) {
  auto shell = std::make_shared<std::string>();
  flags.add("SHELL", shell.get(), "bash, zsh or fish").required();
  flags.footer(
      "bash: quire completions bash > /etc/bash_completion.d/quire\n"
      "zsh:  quire completions zsh > ~/.zfunc/_quire, with ~/.zfunc in $fpath\n"
      "fish: quire completions fish > ~/.config/fish/completions/quire.fish");
  return [shell]() -> Status {
    QUIRE_TRY(const std::string text, completions(described_commands(), *shell));
    write_out(text);
    return {};
  };
}

}  // namespace quire::cli
