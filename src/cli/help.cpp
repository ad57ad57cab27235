#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/chat/terminal_text.h"

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

// "INT in [0 - 1023]" of CLI11's checks as " from 0 to 1023".
std::string range_in_words(const std::string& type) {
  const size_t begin = type.find(" in ["), dash = type.find(" - ", begin), end = type.find(']', begin);
  if (begin == type.npos || dash == type.npos || end == type.npos || dash > end) return {};
  return fmt::format("; from {} to {}", type.substr(begin + 5, dash - begin - 5),
                     type.substr(dash + 3, end - dash - 3));
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

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  return help_entry(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option), {},
                    width_);
}

std::string HelpFormatter::make_option_name(const CLI::Option* option, bool is_positional) const {
  if (is_positional) return option->get_name(true, false);
  std::string names;
  const auto add = [&](const char* dashes, const std::string& name) {
    names += fmt::format("{}{}{}", names.empty() ? "" : ",", dashes, name);
  };
  for (const std::string& name : option->get_snames()) add("-", name);
  for (const std::string& name : option->get_lnames()) add("--", name);
  return names;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text;
  if (option->get_type_size() != 0) {
    const std::string type = option->get_type_name();
    if (!type.empty()) text += " " + type.substr(0, type.find(':'));
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
    if (option->get_required()) text += " REQUIRED";
  }
  for (const CLI::Option* needed : option->get_needs()) text += fmt::format(" (with {})", needed->get_name());
  return text;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return option->get_description() + range_in_words(option->get_type_name());
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return help_entry(command->get_display_name(true), command->get_description(), {.left = 2, .right = 16}, width_);
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  const std::string text = CLI::Formatter::make_description(app);
  return folded(text, 0, width_);
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return folded(CLI::Formatter::make_footer(app), 0, width_);
}

int help_width() {
  constexpr int kUsual = 100, kWidest = 120;  // longer lines are hard to read
  const int columns = terminal_columns();
  return columns > 0 ? std::min(columns, kWidest) : kUsual;
}

}  // namespace quire::cli
