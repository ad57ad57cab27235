#include "command/options_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace quire::cli {
namespace {

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

// "GGUF file" of "GGUF file; of a split model, the first one": shells have one line for it.
std::string first_part(const std::string& help) {
  return help.substr(0, std::min(help.find_first_of(";:("), help.size()));
}

}  // namespace

bool takes_file(const Flag& flag) {
  const std::string& what = flag.row().takes;
  return what.find("FILE") != std::string::npos || what == "PATH" || what == "FOLDER";
}

namespace {

// "`auto`, `fp8`" where the values are known, and else "`INT`, 1 to 64".
std::string taken_values(const Flag& flag) {
  const FlagRow& row = flag.row();
  if (const std::vector<std::string_view> choices = flag.choices(); !choices.empty())
    return fmt::format("`{}`", fmt::join(choices, "`, `"));
  if (flag.is_switch()) return "";
  const char* const between = row.takes.find('[') == std::string::npos ? "`, `" : "\\|";  // ORG/NAME[:QUANT|FILE]
  return "`" + replaced(row.takes, "|", between) + "`" + (row.range ? ", " + row.range->text() : "");
}

}  // namespace

std::string options_markdown(const Flags& command) {
  std::string text = "| option | takes | default | |\n|---|---|---|---|\n";
  for (const Flag& flag : command.rows()) {
    const FlagRow& row = flag.row();
    const std::string names = row.names.empty() ? row.position : fmt::format("{}", fmt::join(row.names, "`, `"));
    const std::string shown = row.default_text.empty() ? "" : "`" + row.default_text + "`";
    text += fmt::format("| {}`{}` | {} | {} | {} |\n", row.position.empty() ? "" : "a position, ", names,
                        taken_values(flag), shown, replaced(row.help, "|", "\\|"));
  }
  return text;
}

std::string options_json(const Flags& command) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Flag& flag : command.rows()) {
    const FlagRow& row = flag.row();
    nlohmann::ordered_json r = {{"names", row.names}, {"takes", row.takes}, {"help", row.help}};
    if (!row.position.empty()) r["position"] = row.position;
    if (!row.default_text.empty()) r["default"] = row.default_text;
    if (const auto choices = flag.choices(); !choices.empty()) r["choices"] = choices;
    if (row.range && std::isfinite(row.range->least)) r["least"] = row.range->least;
    if (row.range && std::isfinite(row.range->most)) r["most"] = row.range->most;
    rows.push_back(std::move(r));
  }
  return nlohmann::ordered_json{{"command", command.name()}, {"options", std::move(rows)}}.dump(2) + "\n";
}

namespace {

using Described = std::vector<std::unique_ptr<const Flags>>;

// In what these write, @program@ and @function@ stand for names: quire-lab and _quire_lab.

std::string bash_completions(const Described& commands) {
  std::string cases, names;
  for (const auto& command : commands) {
    std::vector<std::string> options, files, values;
    for (const Flag& flag : command->rows()) {
      std::vector<std::string>& taking = takes_file(flag) ? files : values;
      for (const std::string& name : flag.row().names) {
        options.push_back(name);
        if (!flag.is_switch()) taking.push_back(name);
      }
    }
    names += command->name() + " ";
    cases += fmt::format("    {}) options='{}' files=' {} ' values=' {} ';;\n", command->name(),
                         fmt::join(options, " "), fmt::join(files, " "), fmt::join(values, " "));
  }
  return fmt::format(R"(# Completes @program@'s command lines in bash: source this file.
@function@() {{
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
complete -o filenames -F @function@ @program@
)",
                     cases, names, names);
}

std::string zsh_quoted(std::string text) {
  for (const std::string_view c : {"\\", "[", "]", ":"}) text = replaced(text, c, "\\" + std::string(c));
  return replaced(text, "'", "'\\''");
}

std::string zsh_completions(const Described& commands) {
  std::string cases, names;
  for (const auto& command : commands) {
    names += fmt::format("    '{}:{}'\n", command->name(), zsh_quoted(command->summary()));
    cases += fmt::format("    {}) _arguments", command->name());
    for (const Flag& flag : command->rows())
      for (const std::string& name : flag.row().names)
        cases += fmt::format(" \\\n      '*{}[{}]{}'", name, zsh_quoted(first_part(flag.row().help)),
                             flag.is_switch()   ? ""
                             : takes_file(flag) ? ":file:_files"
                                                : ":" + zsh_quoted(flag.row().takes) + ":");
    cases += " \\\n      '*:file:_files';;\n";
  }
  return fmt::format(R"(#compdef @program@
# Completes @program@'s command lines in zsh: put this file as _@program@ into a folder of $fpath.
@function@() {{
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
compdef @function@ @program@
)",
                     names, cases);
}

std::string fish_quoted(const std::string& text) {
  return replaced(replaced(text, "\\", "\\\\"), "'", "\\'");
}

std::string fish_completions(const Described& commands) {
  std::string text =
      "# Completes @program@'s command lines in fish: put this file as @program@.fish into its completions folder.\n";
  for (const auto& command : commands) {
    text += fmt::format("complete -c @program@ -n __fish_use_subcommand -f -a {} -d '{}'\n", command->name(),
                        fish_quoted(command->summary()));
    for (const Flag& flag : command->rows())
      for (const std::string& name : flag.row().names) {
        const bool is_long = name.starts_with("--");
        text +=
            fmt::format("complete -c @program@ -n '__fish_seen_subcommand_from {}' -{} {}{} -d '{}'\n", command->name(),
                        is_long            ? "l"
                        : name.size() == 2 ? "s"
                                           : "o",
                        name.substr(is_long ? 2 : 1),
                        flag.is_switch()   ? ""
                        : takes_file(flag) ? " -r -F"
                                           : " -x",
                        fish_quoted(first_part(flag.row().help)));
      }
  }
  return text;
}

}  // namespace

Result<std::string> completions(const Program& program, const std::string& shell) {
  std::string (*write)(const Described&) = nullptr;
  if (shell == "bash") write = bash_completions;
  if (shell == "zsh") write = zsh_completions;
  if (shell == "fish") write = fish_completions;
  if (write == nullptr) return request_error("there are completions for bash, zsh and fish, and none for '{}'", shell);
  Described commands = described_commands(program);
  for (const Neighbour& n : program.neighbours)
    for (const Door& d : n.doors) commands.push_back(std::make_unique<const Flags>(d.name, d.summary));
  std::string function = fmt::format("_{}", program.name);
  std::replace(function.begin(), function.end(), '-', '_');
  return replaced(replaced(write(commands), "@program@", program.name), "@function@", function);
}

}  // namespace quire::cli
