// quire options and quire completions: the program's options, for documents and for shells.
#include <memory>

#include "cli/command.h"
#include "cli/options_table.h"
#include "core/escape.h"
#include "core/output.h"
#include "server/limits_file.h"

namespace quire::cli {
namespace {

// All commands with their options, to be looked at.
std::unique_ptr<CLI::App> described_commands() {
  auto app = std::make_unique<CLI::App>();
  for (const Command& c : commands()) declare(c, *app->add_subcommand(c.name, c.summary));
  return app;
}

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
  const std::unique_ptr<CLI::App> app = described_commands();
  for (const CLI::App* const command : app->get_subcommands({}))
    if (command->get_name() == name) {
      write_out(options_markdown(*command));
      return {};
    }
  return request_error("there is no command '{}'; quire help lists them, and limits are the keys of serve's --limits",
                       escaped(name, 60));
}

}  // namespace

Action add_options(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  app.add_option("COMMAND", *name, "Whose options; limits: the keys of the file that serve takes with --limits")
      ->required();
  return [name] { return print_options(*name); };
}

Action add_completions(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("SHELL", *shell, "bash, zsh or fish")->required();
  app.footer(
      "bash: quire completions bash > /etc/bash_completion.d/quire\n"
      "zsh:  quire completions zsh > ~/.zfunc/_quire, with ~/.zfunc in $fpath\n"
      "fish: quire completions fish > ~/.config/fish/completions/quire.fish");
  return [shell]() -> Status {
    QUIRE_TRY(const std::string text, completions(*described_commands(), *shell));
    write_out(text);
    return {};
  };
}

}  // namespace quire::cli
