#include "engine/lookup_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <regex>

#include "support/golden.h"

namespace quire {
namespace {

using testing::ElementsAre;

constexpr int32_t kLeast = LookupDrafter::kLeastMatch, kMost = LookupDrafter::kMostCompared;

std::vector<int32_t> propose(LookupDrafter& d, int32_t most) {
  std::vector<int32_t> draft(static_cast<size_t>(most), -1);
  draft.resize(static_cast<size_t>(d.propose(draft).count));
  return draft;
}
LookupDrafter of(const std::vector<int32_t>& tokens) {
  LookupDrafter d;
  d.append(tokens);
  return d;
}
std::vector<int32_t> counting(int32_t first, int32_t n) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), first);
  return v;
}
std::vector<int32_t> join(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const auto& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}

TEST(LookupDrafter, DraftsWhatFollowedTheLastTokens) {
  LookupDrafter d = of(join({counting(100, 20), {7}, counting(100, 8)}));
  EXPECT_THAT(propose(d, 3), ElementsAre(108, 109, 110));
  d.append({{108, 109}});
  EXPECT_THAT(propose(d, 7), ElementsAre(110, 111, 112, 113, 114, 115, 116));
  d.append({{55}});
  EXPECT_THAT(propose(d, 3), ElementsAre()) << "another token: no match";
}

TEST(LookupDrafter, NeedsEightTokens) {
  EXPECT_THAT(propose(*std::make_unique<LookupDrafter>(), 3), ElementsAre());
  for (const int32_t n : {1, 7, 8, 9}) {
    LookupDrafter d = of(join({counting(100, 20), {7}, counting(100, n)}));
    EXPECT_EQ(propose(d, 2).size(), n < kLeast ? 0u : 2u) << n;
  }
}

TEST(LookupDrafter, PrefersTheLongestMatchAndThenTheLatest) {
  const std::vector<int32_t> common = counting(100, 8);
  LookupDrafter longest = of(join({{1, 2}, common, {50}, {9}, common, {60}, {1, 2}, common}));
  EXPECT_THAT(propose(longest, 1), ElementsAre(50));
  LookupDrafter latest = of(join({{1}, common, {50}, {2}, common, {60}, {3}, common}));
  EXPECT_THAT(propose(latest, 1), ElementsAre(60));
}

TEST(LookupDrafter, ARepeatedEndGoesOn) {
  LookupDrafter same = of(std::vector<int32_t>(20, 4));
  EXPECT_THAT(propose(same, 7), ElementsAre(4, 4, 4, 4, 4, 4, 4));
  std::vector<int32_t> abc;
  for (int32_t i = 0; i < 40; ++i) abc.push_back(i % 3);
  LookupDrafter period = of(abc);
  EXPECT_THAT(propose(period, 7), ElementsAre(1, 2, 0, 1, 2, 0, 1));
}

TEST(LookupDrafter, FollowsAPlaceBeyondTheLatestCandidates) {
  // The boilerplate's last 8 tokens occur a hundred times later than the file that is being repeated.
  const std::vector<int32_t> file = counting(1000, 40), boilerplate = counting(1, 8);
  std::vector<int32_t> text = join({file, boilerplate, counting(2000, 10)});
  for (int32_t i = 0; i < 100; ++i) text = join({text, boilerplate, {3000 + i}});
  LookupDrafter d = of(join({text, file}));
  EXPECT_THAT(propose(d, 2), ElementsAre(1, 2));
  d.append(boilerplate);
  EXPECT_THAT(propose(d, 2), ElementsAre(2000, 2001));
}

// The longest match in a text and the latest place that has it, by looking at all.
struct Match {
  int32_t end = 0, length = 0;
};
Match longest_match(const std::vector<int32_t>& text) {
  Match best;
  const auto n = static_cast<int32_t>(text.size());
  for (int32_t end = kLeast; end < n; ++end) {
    int32_t k = 0;
    while (k < std::min(end, kMost) && text[static_cast<size_t>(end - 1 - k)] == text[static_cast<size_t>(n - 1 - k)])
      ++k;
    if (k >= kLeast && k >= best.length) best = {end, k};
  }
  return best;
}

TEST(LookupDrafter, FindsWhatLookingEverywhereFinds) {
  std::mt19937 gen(1);
  int matches = 0;
  for (int round = 0; round < 300; ++round) {
    // So large an alphabet that 8 tokens occur in few places; pieces are repeated, some with an error.
    const uint32_t alphabet = 3 + gen() % 8;
    std::vector<int32_t> text;
    LookupDrafter d;
    while (text.size() < 400) {
      std::vector<int32_t> piece;
      if (text.size() > 20 && gen() % 3 != 0) {
        const size_t from = gen() % (text.size() - 15), n = 1 + gen() % std::min<size_t>(100, text.size() - from);
        piece.assign(text.begin() + static_cast<int64_t>(from), text.begin() + static_cast<int64_t>(from + n));
      } else {
        for (uint32_t i = gen() % 12; i > 0; --i) piece.push_back(static_cast<int32_t>(gen() % alphabet));
      }
      d.append(piece);
      text.insert(text.end(), piece.begin(), piece.end());
      const Match want = longest_match(text);
      int32_t occurrences = 0;
      for (size_t end = kLeast; end < text.size(); ++end)
        occurrences += std::equal(text.end() - kLeast, text.end(), text.begin() + static_cast<int64_t>(end) - kLeast);
      std::vector<int32_t> draft(5);
      const LookupDrafter::Draft got = d.propose(draft);
      if (occurrences >= LookupDrafter::kCandidates / 2) continue;  // others may share the bucket
      ASSERT_EQ(got.matched, want.length) << "round " << round;
      ASSERT_EQ(got.count, want.length > 0 ? 5 : 0);
      if (want.length == 0) continue;
      ++matches;
      std::vector<int32_t> extended = text;
      for (size_t i = 0; i < 5; ++i) {
        extended.push_back(extended[static_cast<size_t>(want.end) + i]);
        ASSERT_EQ(draft[i], extended.back()) << "round " << round << ", token " << i;
      }
    }
  }
  EXPECT_GT(matches, 1000);
}

// Texts of a whole context, of every shape that could make a chain or a comparison long.
TEST(LookupDrafter, EveryTextIsQuickAndSmall) {
  constexpr int32_t kContext = 262144;
  std::mt19937 gen(2);
  const std::pair<const char*, std::function<int32_t(int32_t)>> texts[] = {
      {"one token", [](int32_t) { return 5; }},
      {"two tokens", [&](int32_t) { return static_cast<int32_t>(gen() % 2); }},
      {"a period of 100", [](int32_t i) { return i % 100; }},
      {"a different end each time", [](int32_t i) { return i % 70 == 0 ? i : i % 70; }},
      {"nothing twice", [](int32_t i) { return i; }},
      {"negative ids", [](int32_t i) { return -(i % 9); }},
  };
  for (const auto& [name, token] : texts) {
    LookupDrafter d;
    const auto start = std::chrono::steady_clock::now();
    for (int32_t i = 0; i < kContext; ++i) {
      const int32_t t = token(i);
      d.append({&t, 1});
      int32_t draft[7];
      d.propose(draft);
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count() / kContext, 50) << name << ": microseconds a token, sanitizers and busy machines included";
    EXPECT_LE(d.bytes(), 24 * int64_t{kContext}) << name;
    EXPECT_EQ(d.size(), kContext);
  }
}

// What an agent does all day: a file of the prompt is written again, with a name changed wherever it stands and some
// lines left out.
TEST(LookupDrafter, WritesAnEditedFileSeveralTokensAStep) {
  const test::ModelPtr model = test::load_or_die(QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf");
  const std::string file = test::read_whole_file(QUIRE_SOURCE_DIR "/src/engine/scheduler.cpp");
  std::string edited = std::regex_replace(file, std::regex("budget"), "allowance");
  edited = std::regex_replace(edited, std::regex("\n *//[^\n]*"), "");
  ASSERT_LT(edited.size(), file.size());
  const auto tokens = [&](const std::string& text) { return model->tokenizer->encode(text, {}); };
  const std::vector<TokenId> prompt =
                                 tokens("Call the budget an allowance, and leave out the comments.\n" + file + "\n"),
                             answer = tokens(edited);
  LookupDrafter d;
  d.append(prompt);
  int64_t steps = 0, right = 0;
  for (size_t at = 0; at < answer.size(); ++steps) {
    int32_t draft[7];
    const int32_t count = d.propose(draft).count;
    size_t accepted = 0;
    while (accepted < static_cast<size_t>(count) && at + accepted + 1 < answer.size() &&
           draft[accepted] == answer[at + accepted])
      ++accepted;
    right += static_cast<int64_t>(accepted);
    d.append(std::span(answer).subspan(at, std::min(accepted + 1, answer.size() - at)));
    at += accepted + 1;
  }
  const double each = static_cast<double>(answer.size()) / static_cast<double>(steps);
  RecordProperty("tokens_a_step", fmt::format("{:.2f}", each));
  fmt::print("{} tokens in {} steps: {:.2f} a step; {} drafts were right\n", answer.size(), steps, each, right);
  EXPECT_GT(each, 4);
}

}  // namespace
}  // namespace quire
