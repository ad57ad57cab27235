// The options of commands as tables and for shells: documents show what the program takes, and shells complete it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "cli/all_commands.h"
#include "command/options_table.h"
#include "support/program.h"

namespace quire::test {
namespace {

using cli::Flag;
using cli::Flags;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const Flags& flags_of(std::string_view name) {
  static const auto all = all_described();
  return **std::ranges::find_if(all, [&](const auto& flags) { return flags->name() == name; });
}

TEST(OptionsTable, KnowsNamesValuesAndDefaults) {
  const Flags& serve = flags_of("serve");
  const Flag* const slots = serve.find("--parallel");
  ASSERT_NE(slots, nullptr);
  EXPECT_THAT(slots->row().names, Contains("-np")) << "which CLI11 does not know";
  EXPECT_EQ(slots->row().takes, "INT");
  EXPECT_EQ(slots->row().default_text, "0");
  const Flag* const keys = serve.find("--api-key-file");
  ASSERT_NE(keys, nullptr);
  EXPECT_TRUE(cli::takes_file(*keys));
  const Flag* const strict = serve.find("--strict-parameters");
  ASSERT_NE(strict, nullptr);
  EXPECT_TRUE(strict->is_switch());
  EXPECT_THAT(serve.find("--enable-prefix-caching")->row().names,
              ElementsAre("--enable-prefix-caching", "--no-enable-prefix-caching"));
}

TEST(OptionsTable, ShowsChoicesAndRanges) {
  const std::string table = cli::options_markdown(flags_of("serve"));
  EXPECT_THAT(table, HasSubstr("| `--kv-cache-dtype` | `auto`, `bf16`, `fp8` | `auto` |"));
  EXPECT_THAT(table, HasSubstr("| `--swap-space` | `FLOAT`, between 0 and 65536 GiB | `4` |"));
}

TEST(OptionsTable, EveryOptionOfEveryCommandHasHelp) {
  for (const auto& command : all_described())
    for (const Flag& flag : command->rows())
      EXPECT_FALSE(flag.row().help.empty()) << command->name() << " " << flag.name();
}

// The help explains in its own words what a choice means, and must not forget one.
TEST(OptionsTable, HelpNamesEveryChoice) {
  for (const auto& command : all_described())
    for (const Flag& flag : command->rows())
      for (const std::string_view choice : flag.choices())
        EXPECT_THAT(flag.row().help, HasSubstr(std::string(choice))) << command->name() << " " << flag.name();
}

class OptionsProgram : public ProgramTest {};

TEST_F(OptionsProgram, DocumentsShowWhatTheProgramTakes) {
  const std::pair<std::string, std::string> kTables[] = {{"serve", "server.md"}, {"limits", "server-limits.md"}};
  for (const auto& [name, page] : kTables) {
    const std::string document = read_whole_file(std::string(QUIRE_SOURCE_DIR) + "/docs/" + page);
    const Outcome table = quire("options " + name);
    ASSERT_EQ(table.code, 0) << table.err;
    const std::string begin = "<!-- quire options " + name + " -->\n";
    const size_t at = document.find(begin);
    ASSERT_NE(at, std::string::npos) << page;
    const size_t from = at + begin.size(), end = document.find("<!-- end -->", from);
    EXPECT_EQ(document.substr(from, end - from), table.out)
        << "docs/" << page << " differs; tools/update_docs.py writes the tables anew";
  }
}

TEST_F(OptionsProgram, RefusesWhatThereIsNot) {
  expect_refused("options nope", "there is no command 'nope'");
  expect_refused("options", "COMMAND");
  expect_refused("completions csh", "there are completions for bash, zsh and fish, and none for 'csh'");
}

class Completions : public ProgramTest {
 protected:
  // What bash offers for the last word, in a folder with the test's files.
  std::string offered(const std::vector<std::string>& words) const {
    std::string list;
    for (const std::string& w : words) list += "'" + w + "' ";
    return bash("COMP_WORDS=(quire " + list + "); COMP_CWORD=" + std::to_string(words.size()) +
                "; _quire; printf '%s\\n' \"${COMPREPLY[@]}\"");
  }
  std::string bash(const std::string& commands) const {
    EXPECT_EQ(quire("completions bash").code, 0);
    write("completions", read_whole_file(path("out")));
    write("script", "set -eu\ncd " + folder_.string() + "\nsource ./completions\n" + commands + "\n");
    const int status =
        std::system(("bash --norc " + path("script") + " >" + path("out") + " 2>" + path("err")).c_str());
    EXPECT_EQ(status, 0) << read_whole_file(path("err"));
    return read_whole_file(path("out"));
  }
};

TEST_F(Completions, OfBashKnowCommandsOptionsAndFiles) {
  EXPECT_EQ(offered({"ser"}), "serve\n");
  EXPECT_EQ(offered({"help", "insp"}), "inspect\n");
  EXPECT_EQ(offered({"serve", "--max-num"}), "--max-num-seqs\n--max-num-batched-tokens\n");
  EXPECT_EQ(offered({"run", "--max-num"}), "\n") << "an option of another command";
  EXPECT_EQ(offered({"serve", "--port", ""}), "\n") << "a number follows";
  write("model one.gguf", "x");
  EXPECT_EQ(offered({"run", "mod"}), "model one.gguf\n");
  EXPECT_EQ(offered({"serve", "-m", "mod"}), "model one.gguf\n");
}

TEST_F(Completions, OfAllShellsHaveAllCommandsAndOptions) {
  const auto commands = cli::described_commands(cli::kQuire);
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Outcome o = quire("completions " + shell);
    ASSERT_EQ(o.code, 0);
    for (const auto& command : commands) {
      EXPECT_THAT(o.out, HasSubstr(command->name())) << shell;
      for (const Flag& flag : command->rows())
        for (const std::string& name : flag.row().names)
          if (name.starts_with("--")) {
            EXPECT_THAT(o.out, HasSubstr(name.substr(2))) << shell;
          }
    }
  }
}

}  // namespace
}  // namespace quire::test
