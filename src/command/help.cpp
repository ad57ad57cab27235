#include "command/help.h"

#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace quire::cli {
namespace {

constexpr int kLeast = 24;  // columns that a text beside its name should have

// One line without line breaks. `at`: where the cursor is; `indent`: where further lines begin.
void fold_line(std::string_view line, int at, int indent, int width, std::string& out) {
  if (line.find("  ", std::min(line.find_first_not_of(' '), line.size())) != line.npos) {
    out += line;  // columns of a table
    return;
  }
  bool first = true;
  int column = at;
  while (!line.empty()) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == line.npos) return;
    if (first) {  // the line's own indentation stays
      out.append(begin, ' ');
      column += static_cast<int>(begin);
    }
    line.remove_prefix(begin);
    const std::string_view word = line.substr(0, line.find(' '));
    const int size = static_cast<int>(word.size());
    if (!first && width > 0 && column + 1 + size > width) {
      out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      column = indent;
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += size;
    line.remove_prefix(word.size());
    first = false;
  }
}

// "-m,--model FILE REQUIRED", or what stands for it by position.
std::string entry_name(const Flag& flag, bool by_position) {
  const FlagRow& row = flag.row();
  std::string text = by_position ? row.position : fmt::format("{}", fmt::join(row.names, ","));
  if (!flag.is_switch()) {
    text += " " + row.takes;
    if (!row.default_text.empty()) text += "=" + row.default_text;
    if (row.most_words == FlagRow::kAnyNumber) text += " ...";
    if (row.required) text += " REQUIRED";
  }
  if (!row.needed.empty()) text += fmt::format(" (with {})", row.needed);
  return text;
}

std::string usage(const Flags& flags, bool of_program) {
  std::string text = fmt::format("Usage: {}{} [OPTIONS]", of_program ? "" : "quire ", flags.name());
  for (const Flag& flag : flags.rows())
    if (const FlagRow& row = flag.row(); !row.position.empty())
      text += fmt::format(fmt::runtime(row.required ? " {}" : " [{}]"), row.position);
  return text + (of_program ? " [SUBCOMMAND]\n" : "\n");
}

// The names of groups, in the order of their first rows.
std::vector<std::string_view> groups_of(const Flags& flags) {
  std::vector<std::string_view> groups;
  for (const Flag& flag : flags.rows())
    if (std::find(groups.begin(), groups.end(), flag.row().group) == groups.end()) groups.push_back(flag.row().group);
  return groups;
}

std::string program_text(const Program& program, int width) {
  std::string text = "\nSubcommands:\n";
  for (const Command& c : program.commands) text += help_entry(c.name, c.summary, {.left = 2, .right = 16}, width);
  for (const Neighbour& n : program.neighbours) {
    std::vector<std::string_view> names;
    for (const Door& d : n.doors) names.emplace_back(d.name);
    text += folded(fmt::format("\nOf {}, which {} starts: {}\n", n.program, program.name, fmt::join(names, ", ")), 2,
                   width);
  }
  return text;
}

}  // namespace

std::string folded(std::string_view text, int indent, int width) {
  std::string out;
  for (;;) {
    const size_t end = text.find('\n');
    fold_line(text.substr(0, end), 0, indent, width, out);
    if (end == text.npos) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string help_entry(std::string_view name, std::string_view text, HelpColumns columns, int width) {
  std::string out(static_cast<size_t>(columns.left), ' ');
  const bool narrow = width > 0 && width - columns.right < kLeast;
  const int right = narrow ? columns.left + 4 : columns.right;
  while (name.ends_with(' ')) name.remove_suffix(1);
  fold_line(name, columns.left, columns.left + 4, width, out);
  if (text.empty()) return out + "\n";
  const size_t last_line = out.rfind('\n') == out.npos ? 0 : out.rfind('\n') + 1;
  const int column = static_cast<int>(out.size() - last_line);
  out += narrow || column + 1 > right ? "\n" + std::string(static_cast<size_t>(right), ' ')
                                      : std::string(static_cast<size_t>(right - column), ' ');
  for (bool first = true; !text.empty(); first = false) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (!first) out += "\n" + std::string(static_cast<size_t>(right), ' ');
    fold_line(text.substr(0, end), right, right, width, out);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + "\n";
}

std::string help_text(const Flags& flags, const Program* program, int width) {
  std::string text = folded(flags.summary() + "\n", 0, width) + usage(flags, program != nullptr);
  const auto add = [&](const Flag& flag, bool by_position) {
    text += help_entry(entry_name(flag, by_position), flag.row().help, {}, width);
  };
  const auto is_positional = [](const Flag& flag) { return !flag.row().position.empty(); };
  if (std::ranges::any_of(flags.rows(), is_positional)) text += "\nPositionals:\n";
  for (const Flag& flag : flags.rows())
    if (is_positional(flag)) add(flag, true);
  const std::vector<std::string_view> groups = groups_of(flags);
  for (const std::string_view group : groups) {
    text += fmt::format("{}\n{}:\n", group == groups.front() ? "" : "\n", group);
    for (const Flag& flag : flags.rows())
      if (flag.row().group == group && !flag.row().names.empty()) add(flag, false);
  }
  if (program != nullptr) text += program_text(*program, width);
  text += "\n";
  if (!flags.footer().empty()) text += folded(flags.footer() + "\n", 0, width);
  return text;
}

int terminal_columns() {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    winsize size{};
    if (isatty(fd) != 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  }
  return 0;
}

int help_width() {
  constexpr int kUsual = 100, kWidest = 120;  // longer lines are hard to read
  const int columns = terminal_columns();
  return columns > 0 ? std::min(columns, kWidest) : kUsual;
}

}  // namespace quire::cli
