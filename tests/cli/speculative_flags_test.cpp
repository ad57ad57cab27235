#include "command/speculative_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "command/parse.h"

namespace quire::cli {
namespace {

Result<SpeculativeOptions> parse(std::vector<std::string> arguments) {
  Flags rows("test", "");
  SpeculativeFlags flags;
  flags.add(rows);
  QUIRE_TRY([[maybe_unused]] const Asked asked, cli::parse({&rows}, std::move(arguments)));
  return flags.parsed();
}
std::string refusal(std::vector<std::string> arguments) {
  const auto parsed = parse(std::move(arguments));
  return parsed.ok() ? "accepted" : parsed.error().message;
}
std::string config(const std::string& json) {
  return refusal({"--speculative-config", json});
}

TEST(SpeculativeFlags, AreAutoAndSevenUnlessGiven) {
  const SpeculativeOptions o = parse({}).value();
  EXPECT_EQ(o.mode, Speculative::kAuto);
  EXPECT_EQ(o.tokens, 7);
}

TEST(SpeculativeFlags, SetMethodAndTokens) {
  EXPECT_EQ(parse({"--speculative", "off"}).value().mode, Speculative::kOff);
  EXPECT_EQ(parse({"--speculative", "mtp"}).value().mode, Speculative::kMtp);
  const SpeculativeOptions o = parse({"--speculative=lookup", "--speculative-tokens=1"}).value();
  EXPECT_EQ(o.mode, Speculative::kLookup);
  EXPECT_EQ(o.tokens, 1);
}

TEST(SpeculativeFlags, RefuseWhatTheyDoNotKnow) {
  EXPECT_EQ(refusal({"--speculative", "eagle"}), "--speculative eagle: must be auto, off, mtp or lookup");
  for (const char* n : {"0", "8", "-1"})
    EXPECT_THAT(refusal({"--speculative-tokens", n}), testing::HasSubstr("must be between 1 and 7")) << n;
}

TEST(SpeculativeConfig, HasTheMethodsOfVllm) {
  for (const char* method : {"mtp", "qwen3_next_mtp"})
    EXPECT_EQ(parse_speculative_config(fmt::format(R"({{"method": "{}"}})", method)).value().mode, Speculative::kMtp);
  for (const char* method : {"ngram", "suffix"})
    EXPECT_EQ(parse_speculative_config(fmt::format(R"({{"method": "{}"}})", method)).value().mode,
              Speculative::kLookup);
  const auto o = parse({"--speculative-config", R"({"num_speculative_tokens": 3, "method": "mtp"})"}).value();
  EXPECT_EQ(o.tokens, 3);
}

TEST(SpeculativeConfig, NamesWhatItDoesNotKnow) {
  EXPECT_THAT(config(R"({"method": "eagle3"})"), testing::HasSubstr(R"(the method "eagle3" is none)"));
  EXPECT_THAT(config(R"({"method": 3})"), testing::HasSubstr("the method 3 is none"));
  EXPECT_THAT(config(R"({"method": "mtp", "model": "x"})"), testing::HasSubstr(R"(the key "model" is none)"));
  EXPECT_THAT(config(R"({"num_speculative_tokens": 3})"), testing::HasSubstr("needs a method"));
  EXPECT_THAT(config(R"({"method": "mtp", "num_speculative_tokens": "3"})"), testing::HasSubstr("a whole number"));
  EXPECT_THAT(config(R"({"method": "mtp", "num_speculative_tokens": 3.5})"), testing::HasSubstr("a whole number"));
  for (const char* n : {"0", "8", "-9223372036854775808", "18446744073709551615"})
    EXPECT_THAT(config(fmt::format(R"({{"method": "mtp", "num_speculative_tokens": {}}})", n)),
                testing::HasSubstr("must be between 1 and 7"))
        << n;
  for (const char* text : {"{", "[]", "null", "mtp", "{\"method\": \"\xff\"}", "{} {}"})
    EXPECT_THAT(config(text), testing::HasSubstr("not a JSON object")) << text;
  EXPECT_THAT(config(std::string(100000, '[')), testing::HasSubstr("not a JSON object"));
}

TEST(SpeculativeConfig, StandsAlone) {
  const std::string json = R"({"method": "mtp"})";
  EXPECT_EQ(refusal({"--speculative-config", json, "--speculative", "mtp"}),
            "--speculative-config beside --speculative: give one of them");
  EXPECT_THAT(refusal({"--speculative-config", json, "--speculative-tokens", "7"}),
              testing::HasSubstr("beside --speculative-tokens"));
}

}  // namespace
}  // namespace quire::cli
