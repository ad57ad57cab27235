// Help for a terminal: two columns, folded between words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace quire::cli {

// Where names and what is said of them begin.
struct HelpColumns {
  int left = 2, right = 30;
};

// A name and what it means, with a line break at the end. The text is folded between words so that no line is longer
// than `width` (0: any length) unless a word is, and begins on a line of its own where the name is too long for its
// column, or the width leaves too little beside it.
std::string help_entry(std::string_view name, std::string_view text, HelpColumns columns, int width);

// The text's lines folded likewise, all but the first of each indented.
std::string folded(std::string_view text, int indent, int width);

// CLI11's help in these columns: flags without what they are set to, ranges in words.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(int width) : width_(width) {}

  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;

 private:
  int width_;
};

// Of a terminal, or what one has usually.
int help_width();

}  // namespace quire::cli
