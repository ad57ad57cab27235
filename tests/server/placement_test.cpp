// Which of several engines a request goes to.
#include "server/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace quire::test {
namespace {

using server::choose_engine;
using server::EngineOffer;
using server::SentPrefixes;
using testing::ElementsAre;

TEST(Placement, TakesTheLongestPrefixOfThoseThatAreNotFarBusier) {
  struct Row {
    const char* why;
    std::vector<EngineOffer> engines;
    int64_t slack;
    int turn, want;
  };
  const Row rows[] = {
      {"one engine", {{.load = 9}}, 2, 0, 0},
      {"nothing known: the idlest", {{.load = 3}, {.load = 1}, {.load = 2}}, 4, 0, 1},
      {"all alike: whose turn it is", {{}, {}, {}}, 4, 2, 2},
      {"all alike: the turn goes around", {{.lost = true}, {}, {}}, 4, 3, 1},
      {"a prefix before a smaller load", {{.load = 4, .prefix_tokens = 64}, {.load = 0}}, 4, 0, 0},
      {"a prefix is not worth more than the slack", {{.load = 5, .prefix_tokens = 6400}, {.load = 0}}, 4, 0, 1},
      {"the longer prefix", {{.prefix_tokens = 64}, {.load = 2, .prefix_tokens = 128}}, 4, 0, 1},
      {"equal prefixes: the idler", {{.load = 2, .prefix_tokens = 64}, {.load = 1, .prefix_tokens = 64}}, 4, 0, 1},
      {"a lost one has no load", {{.load = 0, .prefix_tokens = 64, .lost = true}, {.load = 50}}, 4, 0, 1},
      {"all are lost", {{.lost = true}, {.lost = true}}, 4, 0, -1},
      {"no engines", {}, 4, 0, -1},
  };
  for (const Row& r : rows) EXPECT_EQ(choose_engine(r.engines, r.slack, r.turn), r.want) << r.why;
}

TEST(Placement, APrefixIsWorthAPartOfAnEngine) {
  EXPECT_EQ(server::placement_slack(1), 2);
  EXPECT_EQ(server::placement_slack(16), 4);
  EXPECT_EQ(server::placement_slack(256), 64);
}

Request prompt_of(int tokens, TokenId last = 7, const std::string& salt = "") {
  Request r;
  std::vector<TokenId>& prompt = r.prompt.edit();
  prompt.resize(static_cast<size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), 10);
  prompt.back() = last;
  r.cache_salt = salt;
  return r;
}

TEST(Placement, KnowsWhatWasSentWhere) {
  SentPrefixes sent(3, 1000);
  const auto find = [&](const Request& r) { return sent.find(sent.hashes_of(r)); };
  sent.add(1, sent.hashes_of(prompt_of(200)));
  EXPECT_THAT(find(prompt_of(200)), ElementsAre(0, 192, 0));
  EXPECT_THAT(find(prompt_of(100)), ElementsAre(0, 64, 0)) << "whole boundaries alone";
  EXPECT_THAT(find(prompt_of(63)), ElementsAre(0, 0, 0));
  EXPECT_THAT(find(prompt_of(192, 8)), ElementsAre(0, 128, 0)) << "another last token";
  EXPECT_THAT(find(prompt_of(200, 7, "other")), ElementsAre(0, 0, 0)) << "another salt";
  sent.add(2, sent.hashes_of(prompt_of(100)));
  EXPECT_THAT(find(prompt_of(300)), ElementsAre(0, 192, 64));
}

TEST(Placement, ForgetsWhatWasUsedLeastRecently) {
  SentPrefixes sent(2, 3);
  const auto first = sent.hashes_of(prompt_of(128)), second = sent.hashes_of(prompt_of(64, 1, "a")),
             third = sent.hashes_of(prompt_of(64, 1, "b"));
  sent.add(0, first);
  sent.add(1, second);
  EXPECT_THAT(sent.find(first), ElementsAre(128, 0));  // used
  sent.add(1, third);
  EXPECT_THAT(sent.find(second), ElementsAre(0, 0));
  EXPECT_THAT(sent.find(third), ElementsAre(0, 64));
  EXPECT_THAT(sent.find(first), ElementsAre(128, 0));
}

TEST(Placement, ForgetsTheEndOfAPromptFirst) {
  SentPrefixes sent(2, 3);
  const auto longest = sent.hashes_of(prompt_of(400));
  sent.add(1, longest);
  EXPECT_THAT(sent.find(longest), ElementsAre(0, 192));
  sent.add(0, sent.hashes_of(prompt_of(64, 1, "a")));
  EXPECT_THAT(sent.find(longest), ElementsAre(0, 128));

  // A beginning counts as used when a prompt that goes on from it is sent.
  SentPrefixes grown(2, 3);
  grown.add(0, grown.hashes_of(prompt_of(65)));
  grown.add(1, grown.hashes_of(prompt_of(64, 1, "a")));
  grown.add(0, grown.hashes_of(prompt_of(129)));
  grown.add(1, grown.hashes_of(prompt_of(64, 1, "b")));
  EXPECT_THAT(grown.find(grown.hashes_of(prompt_of(129))), ElementsAre(128, 0));
}

}  // namespace
}  // namespace quire::test
