// The options of commands as tables and for shells: documents show what the program takes, and shells complete it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/options_table.h"
#include "support/program.h"

namespace quire::test {
namespace {

using cli::OptionRow;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<CLI::App> described() {
  auto app = std::make_unique<CLI::App>();
  for (const cli::Command& c : cli::commands()) cli::declare(c, *app->add_subcommand(c.name, c.summary));
  return app;
}

const OptionRow* find(const std::vector<OptionRow>& rows, const std::string& name) {
  for (const OptionRow& row : rows)
    if (std::find(row.names.begin(), row.names.end(), name) != row.names.end()) return &row;
  return nullptr;
}

TEST(OptionsTable, KnowsNamesValuesAndDefaults) {
  const auto app = described();
  const std::vector<OptionRow> rows = cli::option_rows(*app->get_subcommand("serve"));
  const OptionRow* const slots = find(rows, "--parallel");
  ASSERT_NE(slots, nullptr);
  EXPECT_THAT(slots->names, Contains("-np")) << "which CLI11 does not know";
  EXPECT_EQ(slots->value, "INT");
  EXPECT_EQ(slots->default_value, "0");
  const OptionRow* const keys = find(rows, "--api-key-file");
  ASSERT_NE(keys, nullptr);
  EXPECT_TRUE(keys->takes_file);
  const OptionRow* const strict = find(rows, "--strict-parameters");
  ASSERT_NE(strict, nullptr);
  EXPECT_FALSE(strict->takes_value);
  EXPECT_THAT(find(rows, "--enable-prefix-caching")->names,
              ElementsAre("--enable-prefix-caching", "--no-enable-prefix-caching"));
}

TEST(OptionsTable, EveryOptionOfEveryCommandHasHelp) {
  const auto app = described();
  for (const CLI::App* const command : app->get_subcommands({}))
    for (const OptionRow& row : cli::option_rows(*command))
      EXPECT_FALSE(row.help.empty()) << command->get_name() << " " << row.names[0];
}

class OptionsProgram : public ProgramTest {};

TEST_F(OptionsProgram, DocumentsShowWhatTheProgramTakes) {
  const std::string document = read_whole_file(std::string(QUIRE_SOURCE_DIR) + "/docs/server.md");
  for (const std::string name : {"serve", "limits"}) {
    const Outcome table = quire("options " + name);
    ASSERT_EQ(table.code, 0) << table.err;
    const std::string begin = "<!-- quire options " + name + " -->\n";
    const size_t at = document.find(begin);
    ASSERT_NE(at, std::string::npos);
    const size_t from = at + begin.size(), end = document.find("<!-- end -->", from);
    EXPECT_EQ(document.substr(from, end - from), table.out)
        << "docs/server.md differs; tools/update_docs.py writes the tables anew";
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
  const auto app = described();
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Outcome o = quire("completions " + shell);
    ASSERT_EQ(o.code, 0);
    for (const CLI::App* const command : app->get_subcommands({})) {
      EXPECT_THAT(o.out, HasSubstr(command->get_name())) << shell;
      for (const OptionRow& row : cli::option_rows(*command))
        for (const std::string& name : row.names)
          if (name.starts_with("--")) {
            EXPECT_THAT(o.out, HasSubstr(name.substr(2))) << shell;
          }
    }
  }
}

}  // namespace
}  // namespace quire::test
