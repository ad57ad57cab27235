#include "cli/options_table.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "cli/arguments.h"
#include "cli/command.h"

namespace quire::cli {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

std::vector<std::string> names_of(const CLI::App& command, const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    for (const std::string_view brief : brief_names(command.get_name(), "--" + name)) names.emplace_back(brief);
    names.push_back("--" + name);
  }
  return names;
}

// "GGUF file" of "GGUF file; of a split model, the first one": shells have one line for it.
std::string first_part(const std::string& help) {
  return help.substr(0, std::min(help.find_first_of(";:("), help.size()));
}

}  // namespace

std::vector<OptionRow> option_rows(const CLI::App& command) {
  std::vector<OptionRow> rows;
  for (const CLI::Option* const option : command.get_options()) {
    OptionRow row{.names = names_of(command, *option),
                  .positional = option->get_positional(),
                  .takes_value = option->get_items_expected_max() > 0,
                  .help = option->get_description(),
                  .group = option->get_group()};
    if (row.names.empty()) row.names.push_back(option->get_name());
    if (row.takes_value) {
      row.value = option->get_type_name().substr(0, option->get_type_name().find(':'));
      row.default_value = option->get_default_str();
    }
    row.takes_file = row.value.find("FILE") != std::string::npos || row.value == "PATH" || row.value == "FOLDER";
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string options_markdown(const CLI::App& command) {
  std::string text = "| option | takes | default | |\n|---|---|---|---|\n";
  for (const OptionRow& row : option_rows(command)) {
    const std::string names = fmt::format("`{}`", fmt::join(row.names, "`, `"));
    const std::string value = row.value.empty() ? "" : "`" + replaced(row.value, "|", "`, `") + "`";
    const std::string shown = row.default_value.empty() ? "" : "`" + row.default_value + "`";
    text += fmt::format("| {}{} | {} | {} | {} |\n", row.positional ? "a position, " : "", names, value, shown,
                        replaced(row.help, "|", "\\|"));
  }
  return text;
}

namespace {

std::string bash_completions(const CLI::App& app) {
  std::string cases, names;
  for (const CLI::App* const command : app.get_subcommands({})) {
    std::vector<std::string> options, files, values;
    for (const OptionRow& row : option_rows(*command)) {
      std::vector<std::string>& taking = row.takes_file ? files : values;
      for (const std::string& name : row.names) {
        if (!name.starts_with("-")) continue;  // a position
        options.push_back(name);
        if (row.takes_value) taking.push_back(name);
      }
    }
    names += command->get_name() + " ";
    cases += fmt::format("    {}) options='{}' files=' {} ' values=' {} ';;\n", command->get_name(),
                         fmt::join(options, " "), fmt::join(files, " "), fmt::join(values, " "));
  }
  return fmt::format(R"(# Completes quire's command lines in bash: source this file.
_quire() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local options='' files='' values=''
  COMPREPLY=()
  case ${{COMP_WORDS[1]}} in
{}  esac
  if [[ $COMP_CWORD == 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W '{}help' -- "$word")
  elif [[ $COMP_CWORD == 2 && $before == help ]]; then
    mapfile -t COMPREPLY < <(compgen -W '{}' -- "$word")
  elif [[ $values == *" $before "* ]]; then
    return
  elif [[ $word == -* && $files != *" $before "* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -o filenames -F _quire quire
)",
                     cases, names, names);
}

std::string zsh_quoted(std::string text) {
  for (const std::string_view c : {"\\", "[", "]", ":"}) text = replaced(text, c, "\\" + std::string(c));
  return replaced(text, "'", "'\\''");
}

std::string zsh_completions(const CLI::App& app) {
  std::string cases, names;
  for (const CLI::App* const command : app.get_subcommands({})) {
    names += fmt::format("    '{}:{}'\n", command->get_name(), zsh_quoted(command->get_description()));
    cases += fmt::format("    {}) _arguments", command->get_name());
    for (const OptionRow& row : option_rows(*command))
      for (const std::string& name : row.names)
        if (name.starts_with("-"))
          cases += fmt::format(" \\\n      '*{}[{}]{}'", name, zsh_quoted(first_part(row.help)),
                               !row.takes_value ? ""
                               : row.takes_file ? ":file:_files"
                                                : ":" + zsh_quoted(row.value) + ":");
    cases += " \\\n      '*:file:_files';;\n";
  }
  return fmt::format(R"(#compdef quire
# Completes quire's command lines in zsh: put this file as _quire into a folder of $fpath.
_quire() {{
  local -a commands=(
{}    'help:Explain a command'
  )
  if (( CURRENT == 2 )) || [[ $CURRENT == 3 && $words[2] == help ]]; then
    _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{}  esac
}}
compdef _quire quire
)",
                     names, cases);
}

std::string fish_quoted(const std::string& text) {
  return replaced(replaced(text, "\\", "\\\\"), "'", "\\'");
}

std::string fish_completions(const CLI::App& app) {
  std::string text =
      "# Completes quire's command lines in fish: put this file as quire.fish into its completions folder.\n";
  for (const CLI::App* const command : app.get_subcommands({})) {
    text += fmt::format("complete -c quire -n __fish_use_subcommand -f -a {} -d '{}'\n", command->get_name(),
                        fish_quoted(command->get_description()));
    for (const OptionRow& row : option_rows(*command))
      for (const std::string& name : row.names) {
        if (!name.starts_with("-")) continue;
        const bool is_long = name.starts_with("--");
        text +=
            fmt::format("complete -c quire -n '__fish_seen_subcommand_from {}' -{} {}{} -d '{}'\n", command->get_name(),
                        is_long            ? "l"
                        : name.size() == 2 ? "s"
                                           : "o",
                        name.substr(is_long ? 2 : 1),
                        !row.takes_value ? ""
                        : row.takes_file ? " -r -F"
                                         : " -x",
                        fish_quoted(first_part(row.help)));
      }
  }
  return text;
}

}  // namespace

Result<std::string> completions(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_completions(app);
  if (shell == "zsh") return zsh_completions(app);
  if (shell == "fish") return fish_completions(app);
  return request_error("there are completions for bash, zsh and fish, and none for '{}'", shell);
}

}  // namespace quire::cli
