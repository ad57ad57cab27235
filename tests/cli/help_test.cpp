// Help: two columns that fold with the terminal's width.
#include "command/help.h"

#include <gmock/gmock.h>

#include "cli/all_commands.h"
#include "support/program.h"
#include "support/terminal.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// The longest line that could have been folded: one of several words behind its indentation.
std::string too_long(const std::string& text, size_t width) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    const size_t begin = line.find_first_not_of(' ');
    if (line.size() > width && line.find(' ', begin) != line.npos) return line;
  }
  return "";
}

TEST(Help, EntriesFold) {
  const cli::HelpColumns columns{.left = 2, .right = 12};
  EXPECT_EQ(cli::help_entry("--a", "one two three four five six", columns, 40),
            "  --a       one two three four five six\n");
  EXPECT_EQ(cli::help_entry("--a", "one two three four five six seven eight", columns, 40),
            "  --a       one two three four five six\n            seven eight\n");
  EXPECT_EQ(cli::help_entry("--a-long-name", "one two", columns, 40), "  --a-long-name\n            one two\n");
  EXPECT_EQ(cli::help_entry("--a", "one two three four", columns, 20), "  --a\n      one two three\n      four\n");
  EXPECT_EQ(cli::help_entry("--a", "one\ntwo", columns, 0), "  --a       one\n            two\n");
  EXPECT_EQ(cli::help_entry("--a ", "", columns, 40), "  --a\n");
  EXPECT_EQ(cli::help_entry("--a", "averyveryverylongwordwithoutanyblank", columns, 40),
            "  --a       averyveryverylongwordwithoutanyblank\n")
      << "a word is not cut";
}

class HelpProgram : public ProgramTest {
 protected:
  std::string help(const std::string& command, int columns) const {
    Terminal t({QUIRE_PROGRAM, "help", command}, {{"TERM", "xterm"}}, columns);
    std::string text;
    EXPECT_EQ(t.finish(&text), 0);
    return text;
  }
};

TEST_F(HelpProgram, FoldsToTheWidth) {
  for (const int columns : {60, 80, 110})
    for (const char* command : {"run", "serve", "convert", "chat"})
      EXPECT_EQ(too_long(help(command, columns), static_cast<size_t>(columns)), "") << command << " at " << columns;
  Terminal t({QUIRE_PROGRAM, "help"}, {{"TERM", "xterm"}}, 60);
  std::string text;
  EXPECT_EQ(t.finish(&text), 0);
  EXPECT_EQ(too_long(text, 60), "");
  EXPECT_THAT(text, HasSubstr("Ollama"));
}

TEST_F(HelpProgram, SpeaksInWords) {
  for (const cli::Command& c : all_commands()) {
    const std::string text = quire("help " + std::string(c.name)).out;
    for (const char* odd : {"{false}", "{true}", " in [", ":INT", ":value"})
      EXPECT_THAT(text, Not(HasSubstr(odd))) << c.name;
    EXPECT_EQ(too_long(text, 120), "") << c.name;
  }
  EXPECT_THAT(quire("help quantize").out, HasSubstr("\n  q5_0 q5_1                type          type             q8_0"))
      << "a table";
  EXPECT_THAT(quire("help run").out, HasSubstr("--no-graphs "));
  EXPECT_THAT(quire("help test-ops").out, HasSubstr("1023"));
}

}  // namespace
}  // namespace quire::test
