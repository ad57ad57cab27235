#include "tokenizer/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace quire {
namespace {

using Strings = std::vector<std::string>;

StopMatcher matcher(const Strings& stops) {
  auto m = StopMatcher::create(stops);
  QUIRE_CHECK(m.ok(), "{}", m.error().message);
  return std::move(m).value();
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  StopMatcher m = matcher({"\n\nUser:", "###"});
  EXPECT_EQ(m.push("Hello").text, "Hello");
  EXPECT_EQ(m.push(" #").text, " ");
  EXPECT_EQ(m.push("1\n").text, "#1");
  EXPECT_EQ(m.push("\n").text, "");
  EXPECT_EQ(m.push("\n").text, "\n");  // three line breaks: only the last two may begin the stop
  EXPECT_EQ(m.push("Us").text, "");
  const auto out = m.push("er: ignored");
  EXPECT_TRUE(out.stopped);
  EXPECT_EQ(out.text, "");
  EXPECT_EQ(m.stop_index(), 0);
  EXPECT_EQ(m.push("more").text, "");
  EXPECT_TRUE(m.push("more").stopped);
  EXPECT_EQ(m.flush(), "");
  m.reset();
  EXPECT_FALSE(m.stopped());
  EXPECT_EQ(m.push("x##").text, "x");
  EXPECT_EQ(m.flush(), "##");
  EXPECT_EQ(m.push("#a").text, "#a");  // flush forgot the beginning
}

TEST(StopMatcher, WhichStopWins) {
  struct Case {
    Strings stops;
    const char* text;
    const char* emitted;
    int index;
  };
  const Case cases[] = {
      {{}, "abc", "abc", -1},
      {{"abcd", "bc"}, "xabcd", "xa", 1},  // the first to be complete
      {{"bc", "abc"}, "xabcd", "x", 1},    // complete together: the longest
      {{"abab"}, "abaabab", "aba", 0},
      {{"a"}, "a", "", 0},
      {{"é", "🦙"}, "caf🦙é", "caf", 1},
      {{"aa", "aa"}, "baa", "b", 0},
  };
  for (const Case& c : cases) {
    StopMatcher m = matcher(c.stops);
    const auto out = m.push(c.text);
    EXPECT_EQ(out.text, c.emitted) << c.text;
    EXPECT_EQ(m.stop_index(), c.index) << c.text;
    EXPECT_EQ(out.stopped, c.index >= 0);
  }
}

// However the text is cut, the result is that of finding the stop in the whole text.
TEST(StopMatcher, CutsDoNotMatter) {
  constexpr uint32_t kSeed = 9;
  std::mt19937 random(kSeed);
  const auto random_text = [&](std::size_t n) {
    std::string s(n, 'a');
    for (char& c : s) c = static_cast<char>('a' + random() % 2);
    return s;
  };
  for (int round = 0; round < 50000; ++round) {
    Strings stops;
    for (std::size_t k = random() % 4; k > 0; --k) stops.push_back(random_text(1 + random() % 6));
    const std::string text = random_text(random() % 40);

    std::size_t end = text.size() + 1, begin = text.size();
    for (const std::string& s : stops) {
      const std::size_t at = text.find(s);
      if (at == std::string::npos) continue;
      if (at + s.size() < end || (at + s.size() == end && at < begin)) end = at + s.size(), begin = at;
    }
    const bool stopped = end <= text.size();

    StopMatcher m = matcher(stops);
    std::string emitted;
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t n = random() % 5;
      emitted += m.push(std::string_view(text).substr(i, n)).text;
      i += n;
    }
    emitted += m.flush();
    ASSERT_EQ(m.stopped(), stopped) << text << " round " << round << " seed " << kSeed;
    ASSERT_EQ(emitted, text.substr(0, begin)) << text << " round " << round << " seed " << kSeed;
  }
}

TEST(StopMatcher, BadStopsAreRequestErrors) {
  for (const Strings& stops : {Strings{""}, Strings{"a", "\xC3"}, Strings{std::string(65537, 'a')}}) {
    const auto m = StopMatcher::create(stops);
    ASSERT_FALSE(m.ok());
    EXPECT_EQ(m.error().fault, Fault::kRequest);
  }
}

}  // namespace
}  // namespace quire
