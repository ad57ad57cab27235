// The table of other programs' options: what it says to write instead exists, what it denies does not, and nothing in
// it is dead.
#include "command/foreign_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "cli/all_commands.h"
#include "support/golden.h"

namespace quire::cli {
namespace {

class ForeignOptions : public testing::Test {
 protected:
  bool has(const std::string& command, const std::string& option) const {
    if (option == "--log-level" || option == "--cpu") return true;  // of the program
    return std::ranges::any_of(all_,
                               [&](const auto& flags) { return flags->name() == command && flags->find(option); });
  }
  static bool is_command(const std::string& name) {
    const auto all = test::all_commands();
    return std::any_of(all.begin(), all.end(), [&](const Command& c) { return c.name == name; });
  }
  static std::vector<std::string> words(std::string_view text) {
    std::istringstream in{std::string(text)};
    return {std::istream_iterator<std::string>(in), {}};
  }
  static std::vector<std::string> matches(std::string_view text, const char* pattern) {
    const std::string s(text);
    const std::regex re(pattern);
    std::vector<std::string> all;
    for (std::sregex_iterator i(s.begin(), s.end(), re); i != std::sregex_iterator(); ++i) all.push_back((*i)[1]);
    return all;
  }

  // The names of its routes, and of the fields and limits that it reads, from its source: what is refused or ignored is
  // none.
  static std::set<std::string> words_of_the_server() {
    const std::filesystem::path server = std::filesystem::path(QUIRE_SOURCE_DIR) / "src/server";
    std::set<std::string> known;
    const auto read = [&](const std::filesystem::path& file, const char* pattern) {
      std::istringstream lines(test::read_whole_file(file));
      for (std::string line; std::getline(lines, line);)
        if (matches(line, "(\\b(?:refuse|unserved|ignore)\\()").empty())
          for (std::string& name : matches(line, pattern)) known.insert(std::move(name));
    };
    for (const auto& entry : std::filesystem::directory_iterator(server))
      if (entry.path().filename().string().starts_with("endpoints_"))
        read(entry.path(), "\"/(?:v1/|api/)?([a-z_]+)[\"/]");
    read(server / "limits_file.cpp", "\"([a-z_]+)\"");
    for (const auto& entry : std::filesystem::directory_iterator(server / "protocol"))
      if (entry.path().extension() == ".cpp") read(entry.path(), "\"([a-z_]+)\"");
    return known;
  }

  const std::vector<std::unique_ptr<const Flags>> all_ = test::all_described();
};

TEST_F(ForeignOptions, WhatIsNamedInsteadExists) {
  for (const ForeignOption& o : foreign_options()) {
    SCOPED_TRACE(o.names);
    EXPECT_FALSE(words(o.commands).empty());
    for (const std::string& command : words(o.commands)) {
      ASSERT_TRUE(is_command(command)) << command;
      for (const std::string& option : matches(o.instead, "(--[a-z][a-z-]*)"))
        EXPECT_TRUE(has(command, option)) << command << " has no " << option;
    }
    for (const std::string& command : matches(o.instead, "quire (?:help )?([a-z][a-z-]*)"))
      EXPECT_TRUE(is_command(command)) << command;
  }
}

// "there is nothing like it here", "there are no adapters": neither a flag, nor a route, nor a field that a request may
// have is called so.
TEST_F(ForeignOptions, WhatIsSaidNotToBeIsNot) {
  const std::set<std::string> known = words_of_the_server();
  for (const char* const word : {"rerank", "grammar", "json_schema", "temperature"}) EXPECT_TRUE(known.contains(word));
  size_t denied = 0;
  for (const ForeignOption& o : foreign_options()) {
    if (o.instead != kNothingLikeIt && matches(o.instead, "(there (?:is|are) no )").empty()) continue;
    for (const std::string& name : words(o.names)) {
      if (!name.starts_with("--")) continue;
      ++denied;
      for (const Command& c : test::all_commands()) EXPECT_FALSE(has(c.name, name)) << c.name << " has " << name;
      std::string field = name.substr(2);
      std::replace(field.begin(), field.end(), '-', '_');
      EXPECT_FALSE(known.contains(field))
          << "the server knows " << field << ", but of " << name << " is said that " << o.instead;
    }
  }
  EXPECT_GT(denied, 5u);
}

// What a sentence tells a request to say, a request may say.
TEST_F(ForeignOptions, FieldsThatAreNamedExist) {
  const std::set<std::string> known = words_of_the_server();
  for (const ForeignOption& o : foreign_options()) {
    for (const std::string& field : matches(o.instead, "\\b([a-z]+_[a-z_]+)\\b"))
      EXPECT_TRUE(known.contains(field)) << o.names << ": there is no field " << field;
    for (const std::string& route : matches(o.instead, "(?:^| )/(?:v1/)?([a-z]+)"))
      EXPECT_TRUE(known.contains(route)) << o.names << ": there is no route " << route;
  }
}

TEST_F(ForeignOptions, NothingIsDead) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const ForeignOption& o : foreign_options())
    for (const std::string& command : words(o.commands))
      for (const std::string& name : words(o.names)) {
        EXPECT_THAT(name, testing::MatchesRegex("--?[a-zA-Z][a-zA-Z0-9-]*"));
        EXPECT_FALSE(has(command, name)) << command << " has " << name << " itself: delete it from the table";
        if (o.program == "vLLM" && find_foreign(command, name) != &o) continue;  // also llama.cpp's
        EXPECT_TRUE(seen.emplace(command, name).second) << command << " " << name << " stands there twice";
        EXPECT_EQ(find_foreign(command, name), &o) << command << " " << name;
      }
}

TEST_F(ForeignOptions, Forms) {
  EXPECT_NE(find_foreign("serve", "-tp"), nullptr);
  EXPECT_EQ(find_foreign("serve", "--no-enable-chunked-prefill"), find_foreign("serve", "--enable-chunked-prefill"));
  EXPECT_EQ(find_foreign("serve", "--compilation-config.level"), find_foreign("serve", "-O3"));
  EXPECT_EQ(find_foreign("inspect", "-tp"), nullptr);
  EXPECT_EQ(find_foreign("serve", "--nothing"), nullptr);
  EXPECT_EQ(find_foreign("serve", ""), nullptr);
}

}  // namespace
}  // namespace quire::cli
