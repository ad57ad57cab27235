#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace quire {
namespace {

// The longest token that ends at `end` and may still fit. At most one candidate per end stands in the queue.
struct Candidate {
  std::size_t length;
  TokenId id;
  std::size_t end;
  AhoCorasick::State state;
};
struct ComesLater {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tuple(a.length, b.id, b.end) < std::tuple(b.length, a.id, a.end);
  }
};

}  // namespace

SpecialTokenFinder::SpecialTokenFinder(std::vector<SpecialToken> tokens) {
  std::vector<std::string_view> patterns;
  for (const SpecialToken& t : tokens) {
    patterns.push_back(t.text);
    ids_.push_back(t.id);
  }
  automaton_ = AhoCorasick(patterns);
}

std::vector<SpecialTokenFinder::Piece> SpecialTokenFinder::split(std::string_view text) const {
  if (text.empty()) return {};
  std::vector<Candidate> found;
  const auto add = [&](AhoCorasick::State state, std::size_t end, std::size_t max_length, auto& to) {
    const int32_t pattern = automaton_.longest_match(state, max_length);
    if (pattern == AhoCorasick::kNoPattern) return;
    const auto p = static_cast<std::size_t>(pattern);
    to.push_back({automaton_.pattern_length(pattern), ids_[p], end, state});
  };
  AhoCorasick::State state = AhoCorasick::kStart;
  for (std::size_t i = 0; !automaton_.empty() && i < text.size(); ++i) {
    if (state == AhoCorasick::kStart && !automaton_.begins(text[i])) continue;
    state = automaton_.next(state, text[i]);
    add(state, i + 1, i + 1, found);
  }
  if (found.empty()) return {{0, text.size(), -1}};

  // Take candidates longest first. What is taken already is no shorter than the candidate, so it can only
  // cover the candidate's last byte (then nothing that ends there fits) or its first (then something shorter
  // may). The second case at least halves the free gap before `end`, so each end returns to the queue a
  // logarithmic number of times.
  std::vector<std::size_t> taken_end(text.size(), 0);  // for each byte: end of the token over it, or 0
  std::vector<Piece> taken;
  std::make_heap(found.begin(), found.end(), ComesLater{});
  while (!found.empty()) {
    std::pop_heap(found.begin(), found.end(), ComesLater{});
    const Candidate c = found.back();
    found.pop_back();
    if (taken_end[c.end - 1] != 0) continue;
    const std::size_t begin = c.end - c.length;
    if (const std::size_t blocked_to = taken_end[begin]; blocked_to != 0) {
      const std::size_t before = found.size();
      add(c.state, c.end, c.end - blocked_to, found);
      if (found.size() > before) std::push_heap(found.begin(), found.end(), ComesLater{});
      continue;
    }
    std::fill(taken_end.begin() + static_cast<std::ptrdiff_t>(begin),
              taken_end.begin() + static_cast<std::ptrdiff_t>(c.end), c.end);
    taken.push_back({begin, c.end, c.id});
  }

  std::sort(taken.begin(), taken.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::vector<Piece> pieces;
  std::size_t at = 0;
  for (const Piece& p : taken) {
    if (p.begin > at) pieces.push_back({at, p.begin, -1});
    pieces.push_back(p);
    at = p.end;
  }
  if (at < text.size()) pieces.push_back({at, text.size(), -1});
  return pieces;
}

}  // namespace quire
