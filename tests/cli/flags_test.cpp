// Flags as rows: what a row makes of the words of a command line, and what it says of those that it does not take.
#include "command/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "command/help.h"
#include "command/parse.h"

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

enum class Colour { kRed, kGreen, kBlue };
constexpr Named<Colour> kColours[] = {
    {"red", Colour::kRed}, {"green", Colour::kGreen, "verde grün"}, {"blue", Colour::kBlue}};

// A command with a row of each kind.
struct Painting {
  Flags flags{"paint", "Paint something"};
  int32_t coats = 2;
  double drying = 1.5;
  std::optional<int64_t> area;
  std::string model, note, finish = "matt";
  std::vector<int32_t> layers = {1, 8};
  std::vector<std::string> walls;
  uint64_t seed = 0;
  Colour colour = Colour::kGreen;
  bool quick = false, page = true;

  Painting() {
    flags.add("-m,--model,MODEL FILE", &model, "What").required();
    flags.add("-nc,--coats", &coats, between(1, 9), "How often");
    flags.add("--drying", &drying, above(0, 24, "hours"), "Hours");
    flags.add("--area", &area, at_least(1).or_else(-1, "all of it"), "Square metres").needs("--walls");
    flags.add("--note", &note, "For others").may_be_empty();
    flags.add("--finish", chosen_text(&finish, {{"matt"}, {"gloss"}}), "Its shine");
    flags.add("--layers", &layers, between(1, 99), "Which");
    flags.add("--walls", &walls, "Of which rooms").lists();
    flags.add("--seed", &seed, "Of chance").any_bits();
    flags.add("--colour", chosen(&colour, kColours), "Of the paint");
    flags.add("--quick", &quick, "Do it soon");
    flags.add("!--no-page", &page, "Show no page");
  }
  // What was wrong; empty: nothing.
  std::string parse(std::vector<std::string> arguments) {
    const Result<Asked> asked = cli::parse({&flags}, std::move(arguments));
    return asked.ok() ? "" : asked.error().message;
  }
};

TEST(Flags, FillTheirMembers) {
  Painting p;
  EXPECT_EQ(p.parse({"house", "--coats", "3", "--drying=0.5", "--area", "1.5k", "--walls", "a", "--walls", "b",
                     "--layers", "3,4", "--seed=-1", "--colour", "Blue", "--finish", "GLOSS", "--quick", "--no-page"}),
            "");
  EXPECT_EQ(p.model, "house");
  EXPECT_EQ(p.coats, 3);
  EXPECT_EQ(p.drying, 0.5);
  EXPECT_EQ(p.area, 1500);
  EXPECT_THAT(p.walls, ElementsAre("a", "b"));
  EXPECT_THAT(p.layers, ElementsAre(3, 4));
  EXPECT_EQ(p.seed, UINT64_MAX);
  EXPECT_EQ(p.colour, Colour::kBlue);
  EXPECT_EQ(p.finish, "gloss");
  EXPECT_TRUE(p.quick);
  EXPECT_FALSE(p.page);
}

TEST(Flags, KnowWhetherTheyWereGiven) {
  Painting p;
  EXPECT_EQ(p.parse({"-m", "house", "--quick", "--walls", "a", "--coats", "1", "--coats", "2"}), "");
  for (const char* name : {"--model", "MODEL", "--quick", "--walls", "-nc"}) EXPECT_TRUE(p.flags.find(name)->given());
  for (const char* name : {"--colour", "--no-page", "--note"}) EXPECT_FALSE(p.flags.find(name)->given());
  EXPECT_THAT(p.flags.find("--coats")->values(), ElementsAre("2")) << "the last one counts";
  EXPECT_EQ(p.coats, 2);
  EXPECT_EQ(p.colour, Colour::kGreen);
  EXPECT_EQ(p.flags.find("--nothing"), nullptr);
  EXPECT_EQ(p.flags.find(""), nullptr);
}

TEST(Flags, SayWhatIsWrongAndWhatIsAllowed) {
  const auto refusal = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "house");
    return Painting().parse(std::move(arguments));
  };
  EXPECT_EQ(refusal({"--coats", "10"}), "--coats 10: must be between 1 and 9");
  EXPECT_EQ(refusal({"--coats", "x"}), "--coats: 'x' is not a whole number");
  EXPECT_EQ(refusal({"--coats", "99999999999"}), "--coats: 99999999999 is out of range");
  EXPECT_EQ(refusal({"--drying", "0"}), "--drying 0: must be above 0 and at most 24 hours");
  EXPECT_EQ(refusal({"--drying", "nan"}), "--drying: 'nan' is not a number");
  EXPECT_EQ(refusal({"--walls", "a", "--area", "0"}), "--area 0: must be at least 1, or -1 for all of it");
  EXPECT_EQ(refusal({"--walls", "a", "--area", "-1"}), "");
  EXPECT_EQ(refusal({"--area", "3"}), "--area requires --walls");
  EXPECT_EQ(refusal({"--layers", "1,100"}), "--layers 100: must be between 1 and 99");
  EXPECT_EQ(refusal({"--colour", "pink"}), "--colour pink: must be red, green or blue");
  EXPECT_EQ(refusal({"--colour", "verde"}), "") << "a name that messages leave out";
  EXPECT_EQ(refusal({"--finish", "rough"}), "--finish rough: must be matt or gloss");
  EXPECT_THAT(refusal({"--finish", ""}), HasSubstr("--finish: is empty"));
  EXPECT_EQ(refusal({"--note", ""}), "");
}

TEST(Flags, AreShownAsRows) {
  const Painting p;
  EXPECT_EQ(help_text(p.flags, {}, 100),
            "Paint something\n"
            "Usage: quire paint [OPTIONS] MODEL\n\n"
            "Positionals:\n"
            "  MODEL FILE REQUIRED         What\n\n"
            "Options:\n"
            "  -h,--help                   Print this help message and exit\n"
            "  -m,--model FILE REQUIRED    What\n"
            "  -nc,--coats INT=2           How often\n"
            "  --drying FLOAT=1.5          Hours\n"
            "  --area INT (with --walls)   Square metres\n"
            "  --note TEXT                 For others\n"
            "  --finish TEXT=matt          Its shine\n"
            "  --layers INT=[1,8] ...      Which\n"
            "  --walls TEXT ...            Of which rooms\n"
            "  --seed UINT=0               Of chance\n"
            "  --colour TEXT=green         Of the paint\n"
            "  --quick                     Do it soon\n"
            "  --no-page                   Show no page\n\n");
  EXPECT_THAT(p.flags.find("--colour")->choices(), ElementsAre("red", "green", "blue"));
}

TEST(Flags, AreSetByOtherWordsAfterwards) {
  Painting p;
  EXPECT_EQ(p.parse({"house", "--walls", "a"}), "");
  EXPECT_TRUE(p.flags.find("--model")->set({"tower"}).ok());
  EXPECT_EQ(p.model, "tower");
  EXPECT_FALSE(p.flags.find("--coats")->set({"0"}).ok());
}

}  // namespace
}  // namespace quire::cli
