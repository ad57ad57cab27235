// Pages of man and rows as JSON: what packages ship of a program's options.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/all_commands.h"
#include "command/man_page.h"
#include "command/options_table.h"
#include "support/program.h"

namespace quire::test {
namespace {

using cli::Flag;
using testing::HasSubstr;
using testing::StartsWith;

std::string hyphens_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '-' ? std::string("\\-") : std::string(1, c);
  return out;
}

// A line that begins with a dot or a quote is a request to roff: text that does would be lost, or do something.
TEST(ManPage, EveryRequestIsOneOfTheseMacros) {
  std::vector<std::string> pages = {cli::man_page(cli::kQuire), cli::man_page(cli::kLab)};
  for (const cli::Program* const program : {&cli::kQuire, &cli::kLab})
    for (const auto& command : cli::described_commands(*program)) pages.push_back(cli::man_page(*program, *command));
  for (const std::string& page : pages) {
    EXPECT_THAT(page, StartsWith(".TH "));
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(".") || line.starts_with("'")) {
        EXPECT_THAT(line, testing::AnyOf(StartsWith(".TH "), StartsWith(".SH "), ".TP", ".nf", ".fi")) << page;
      }
    EXPECT_EQ(page.find("\n\n"), page.npos) << page;
  }
}

TEST(ManPage, HasEveryOptionOfEveryCommand) {
  for (const auto& command : cli::described_commands(cli::kQuire)) {
    const std::string page = cli::man_page(cli::kQuire, *command);
    for (const Flag& flag : command->rows())
      for (const std::string& name : flag.row().names)
        EXPECT_THAT(page, HasSubstr("\\fB" + hyphens_escaped(name) + "\\fR")) << command->name();
  }
}

TEST(OptionsJson, SaysOfARowWhatTheTableSays) {
  for (const auto& command : all_described()) {
    const auto parsed = nlohmann::json::parse(cli::options_json(*command));
    EXPECT_EQ(parsed.at("command"), command->name());
    ASSERT_EQ(parsed.at("options").size(), command->rows().size());
    for (size_t i = 0; i < command->rows().size(); ++i) {
      const Flag& flag = command->rows()[i];
      const nlohmann::json& row = parsed.at("options")[i];
      EXPECT_EQ(row.at("names"), nlohmann::json(flag.row().names));
      EXPECT_EQ(row.value("choices", std::vector<std::string>()).size(), flag.choices().size());
      EXPECT_EQ(row.contains("least"), flag.row().range && std::isfinite(flag.row().range->least));
    }
  }
}

class Packaged : public ProgramTest {};

TEST_F(Packaged, OptionsComeAsPagesOfManAndAsJson) {
  const Outcome man = quire("options serve --format man");
  EXPECT_EQ(man.code, 0) << man.err;
  EXPECT_THAT(man.out, StartsWith(".TH QUIRE\\-SERVE 1"));
  const Outcome program = quire("options quire --format man");
  EXPECT_EQ(program.code, 0) << program.err;
  EXPECT_THAT(program.out, HasSubstr("\\fBquire\\-serve\\fR(1)"));
  EXPECT_EQ(nlohmann::json::parse(quire("options run --format json").out).at("command"), "run");
  expect_refused("options quire", "there is no command 'quire'");
  expect_refused("options serve --format html", "must be markdown, man or json");
}

TEST_F(Packaged, TheVersionComesAsJson) {
  const auto version = nlohmann::json::parse(quire("version --json").out);
  EXPECT_EQ(version.at("version"), QUIRE_VERSION);
  EXPECT_TRUE(version.at("cuda").is_boolean());
}

}  // namespace
}  // namespace quire::test
