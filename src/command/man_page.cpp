#include "command/man_page.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace quire::cli {
namespace {

// Text as roff takes it: a backslash, a hyphen and a dot or quote at a line's beginning mean something else there.
std::string roff(std::string_view text) {
  std::string out;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    begins = c == '\n';
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string heading(std::string name, const char* summary) {
  std::string upper = name;
  std::ranges::transform(upper, upper.begin(), [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  return fmt::format(".TH {} 1 \"\" \"quire {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n", roff(upper), QUIRE_VERSION,
                     roff(name), roff(summary));
}

// ".TP", the names in bold with what they take, and the help.
std::string entry(const Flag& flag) {
  const FlagRow& row = flag.row();
  std::vector<std::string> names;
  for (const std::string& name : row.names) names.push_back("\\fB" + roff(name) + "\\fR");
  if (!row.position.empty()) names.insert(names.begin(), "\\fI" + roff(row.position) + "\\fR");
  std::string text = fmt::format(".TP\n{}", fmt::join(names, ", "));
  if (!flag.is_switch()) text += " \\fI" + roff(row.takes) + "\\fR";
  text += "\n" + roff(row.help);
  if (const auto choices = flag.choices(); !choices.empty())
    text += "\nOne of " + roff(fmt::format("{}", fmt::join(choices, ", "))) + ".";
  if (row.range) text += "\nMay be " + roff(row.range->text()) + ".";
  if (!row.default_text.empty()) text += "\nDefault: " + roff(row.default_text) + ".";
  return text + "\n";
}

}  // namespace

std::string man_page(const Program& program, const Flags& command) {
  const std::string name = fmt::format("{}-{}", program.name, command.name());
  std::string text = heading(name, command.summary().c_str());
  text += fmt::format(".SH SYNOPSIS\n\\fB{} {}\\fR [\\fIOPTIONS\\fR]", roff(program.name), roff(command.name()));
  for (const Flag& flag : command.rows())
    if (const FlagRow& row = flag.row(); !row.position.empty())
      text += row.required ? fmt::format(" \\fI{}\\fR", roff(row.position))
                           : fmt::format(" [\\fI{}\\fR]", roff(row.position));
  std::string group;
  for (const Flag& flag : command.rows()) {
    const std::string& next = flag.row().group.empty() ? std::string(Flags::kNoGroup) : flag.row().group;
    if (next != group) text += fmt::format("\n.SH {}", roff(next));
    group = next;
    text += "\n" + entry(flag);
    text.pop_back();
  }
  if (!command.footer().empty()) text += "\n.SH NOTES\n.nf\n" + roff(command.footer()) + "\n.fi";
  return text + fmt::format("\n.SH SEE ALSO\n\\fB{}\\fR(1)\n", roff(program.name));
}

std::string man_page(const Program& program) {
  std::string text = heading(program.name, program.summary);
  text += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH COMMANDS\n", roff(program.name));
  const auto command = [&](const char* name, const char* summary) {
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(name), roff(summary));
  };
  for (const Command& c : program.commands) command(c.name, c.summary);
  for (const Neighbour& n : program.neighbours)
    for (const Door& d : n.doors) command(d.name, d.summary);
  text += fmt::format(".SH SEE ALSO\n\\fB{}\\fR help \\fICOMMAND\\fR explains a command's options", roff(program.name));
  for (const Command& c : program.commands)
    text += fmt::format(",\n\\fB{}\\-{}\\fR(1)", roff(program.name), roff(c.name));
  return text + ".\n";
}

}  // namespace quire::cli
