#include "tokenizer/special_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace quire {
namespace {

using Pieces = std::vector<SpecialTokenSearch::Piece>;

std::string show(std::string_view text, const Pieces& pieces) {
  std::string out;
  for (const auto& p : pieces) {
    const std::string part(text.substr(p.begin, p.end - p.begin));
    out += p.token < 0 ? "(" + part + ")" : "[" + std::to_string(p.token) + ":" + part + "]";
  }
  return out;
}

Pieces all_of(SpecialTokenSearch& search) {
  Pieces pieces;
  while (const auto piece = search.next()) pieces.push_back(*piece);
  return pieces;
}

std::string split(const std::vector<std::string>& tokens, std::string_view text) {
  std::vector<SpecialToken> specials;
  for (std::size_t i = 0; i < tokens.size(); ++i) specials.push_back({tokens[i], static_cast<TokenId>(i)});
  const SpecialTokenFinder finder(specials);
  SpecialTokenSearch search(finder, text);
  return show(text, all_of(search));
}

// The definition: for each token, longest first, replace its occurrences in every fragment, from the left.
std::string naive(const std::vector<std::string>& tokens, std::string_view text) {
  using Piece = SpecialTokenSearch::Piece;
  Pieces pieces;
  if (!text.empty()) pieces.push_back({0, text.size(), -1});
  std::vector<std::size_t> order(tokens.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return tokens[a].size() > tokens[b].size(); });
  for (const std::size_t token : order) {
    std::vector<Piece> next;
    for (const Piece& p : pieces) {
      if (p.token >= 0) {
        next.push_back(p);
        continue;
      }
      std::size_t at = p.begin;
      while (true) {
        const std::size_t found = text.substr(0, p.end).find(tokens[token], at);
        if (found == std::string_view::npos) break;
        if (found > at) next.push_back({at, found, -1});
        at = found + tokens[token].size();
        next.push_back({found, at, static_cast<TokenId>(token)});
      }
      if (at < p.end) next.push_back({at, p.end, -1});
    }
    pieces = next;
  }
  return show(text, pieces);
}

TEST(SpecialTokens, Pieces) {
  EXPECT_EQ(split({}, ""), "");
  EXPECT_EQ(split({}, "abc"), "(abc)");
  EXPECT_EQ(split({"<a>"}, ""), "");
  EXPECT_EQ(split({"<a>"}, "<a>"), "[0:<a>]");
  EXPECT_EQ(split({"<a>"}, "x<a><a>y"), "(x)[0:<a>][0:<a>](y)");
  EXPECT_EQ(split({"<a>"}, "<a<a>"), "(<a)[0:<a>]");
  EXPECT_EQ(split({"aa"}, "aaaaa"), "[0:aa][0:aa](a)");
  // Longest first, although the shorter one stands further left.
  EXPECT_EQ(split({"ab", "bcd"}, "abcd"), "(a)[1:bcd]");
  // Equal lengths: the lower id.
  EXPECT_EQ(split({"bc", "ab"}, "abc"), "(a)[0:bc]");
  EXPECT_EQ(split({"ab", "bc"}, "abc"), "[0:ab](c)");
  // A shorter token that ends where a blocked longer one does.
  EXPECT_EQ(split({"xxxab", "abcd", "cd", "d"}, "xxxabcd"), "[0:xxxab][2:cd]");
  EXPECT_EQ(split({"xxxxabc", "abcd", "cd", "d"}, "xxxxabcd"), "[0:xxxxabc][3:d]");
  EXPECT_EQ(split({std::string("\0\xFF", 2)}, std::string_view("a\0\xFF", 3)), std::string("(a)[0:\0\xFF]", 9));
}

TEST(SpecialTokens, SameAsTheDefinition) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> tokens;
    const int letters = 1 + static_cast<int>(random() % 3);
    for (std::size_t k = random() % 8; k > 0; --k) {
      std::string token(1 + random() % 7, ' ');
      for (char& c : token) c = static_cast<char>('a' + random() % letters);
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    }
    std::string text(random() % 40, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % letters);
    ASSERT_EQ(split(tokens, text), naive(tokens, text)) << "round " << round << " seed " << kSeed;
  }
}

// Some twenty windows of texts made of tokens that overlap each other and themselves: what one window decides, the next
// must go on from.
TEST(SpecialTokens, WindowsLeaveNoTrace) {
  constexpr uint32_t kSeed = 12;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::string> tokens;
    const int letters = 1 + static_cast<int>(random() % 3);
    for (std::size_t k = 1 + random() % 8; k > 0; --k) {
      std::string token(1 + random() % 200, ' ');
      const std::string part(1 + random() % 5, static_cast<char>('a' + random() % letters));
      for (std::size_t i = 0; i < token.size(); ++i)
        token[i] = random() % 50 == 0 ? static_cast<char>('a' + random() % letters) : part[i % part.size()];
      if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
    }
    std::string text;
    while (text.size() < 80'000) text += tokens[random() % tokens.size()].substr(random() % 2);
    ASSERT_EQ(split(tokens, text), naive(tokens, text)) << "round " << round << " seed " << kSeed;
  }
}

// The work for a text of one token that overlaps itself grows with the text, the memory does not.
TEST(SpecialTokens, ATokenThatOverlapsItselfIsFoundInLinearTime) {
  const std::vector<SpecialToken> tokens{{"aaaaaaaaaaaaaaaaaaaaaaaa", 0}, {"aaaaaaaaaaaaaaaab", 1}};
  const SpecialTokenFinder finder(tokens);
  for (const std::size_t size : {std::size_t{100'000}, std::size_t{4'000'000}}) {
    const std::string text(size, 'a');
    SpecialTokenSearch search(finder, text);
    std::size_t found = 0;
    while (const auto piece = search.next()) found += piece->token == 0;
    EXPECT_EQ(found, size / 24);
    EXPECT_EQ(search.window_bytes(), 4096u);
    EXPECT_LT(search.steps(), 10 * size);
  }
}

// 1000 nested tokens a, aa, aaa, ... on a long text: a thousand of them end at every byte.
TEST(SpecialTokens, NestedTokensOnALongText) {
  std::vector<std::string> tokens;
  for (std::size_t n = 1; n <= 1000; ++n) tokens.push_back(std::string(n, 'a'));
  std::vector<SpecialToken> specials;
  for (std::size_t i = 0; i < tokens.size(); ++i) specials.push_back({tokens[i], static_cast<TokenId>(i)});
  const SpecialTokenFinder finder(specials);
  std::string text(200'001, 'a');
  SpecialTokenSearch whole(finder, text);
  EXPECT_EQ(all_of(whole).size(), 201u);
  for (std::size_t i = 0; i < text.size(); i += 700) text[i] = 'b';
  SpecialTokenSearch cut(finder, text);
  for (const auto& piece : all_of(cut)) EXPECT_LT(piece.end - piece.begin, 700u);
}

}  // namespace
}  // namespace quire
