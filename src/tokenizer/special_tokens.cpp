#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace quire {
namespace {

constexpr std::size_t kMinWindow = 4096;

}  // namespace

struct SpecialTokenSearch::ComesLater {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tuple(a.length, b.id, b.end) < std::tuple(b.length, a.id, a.end);
  }
};

SpecialTokenFinder::SpecialTokenFinder(std::vector<SpecialToken> tokens) {
  std::vector<std::string_view> patterns;
  for (const SpecialToken& t : tokens) {
    patterns.push_back(t.text);
    ids_.push_back(t.id);
    total_bytes_ += t.text.size();
  }
  automaton_ = AhoCorasick(patterns);
}

SpecialTokenSearch::SpecialTokenSearch(const SpecialTokenFinder& finder, std::string_view text)
    : finder_(finder), text_(text), window_bytes_(std::max(kMinWindow, 4 * finder.total_bytes_)) {}

std::optional<SpecialTokenSearch::Piece> SpecialTokenSearch::next() {
  while (next_ == tokens_.size() && settled_ < text_.size()) search_window();
  const bool token_follows = next_ < tokens_.size();
  const std::size_t text_end = token_follows ? tokens_[next_].begin : text_.size();
  if (at_ < text_end) return Piece{std::exchange(at_, text_end), text_end, -1};
  if (!token_follows) return std::nullopt;
  at_ = tokens_[next_].end;
  return tokens_[next_++];
}

// Decides about all tokens that begin within the next window, except those near its end, which a token that the window
// cuts off may concern.
void SpecialTokenSearch::search_window() {
  tokens_.clear();
  next_ = 0;
  const AhoCorasick& automaton = finder_.automaton_;
  std::size_t begin = settled_;
  while (begin < text_.size() && !automaton.begins(text_[begin])) ++begin;
  steps_ += begin - settled_;
  const std::size_t end = std::min(text_.size(), begin + window_bytes_);
  const std::string_view window = text_.substr(begin, end - begin);
  find_candidates(window);
  take_candidates(window);

  const std::size_t certain = end == text_.size() ? end : end - finder_.total_bytes_;
  std::sort(tokens_.begin(), tokens_.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  for (Piece& p : tokens_) p = {p.begin + begin, p.end + begin, p.token};
  while (!tokens_.empty() && tokens_.back().begin >= certain) tokens_.pop_back();
  settled_ = tokens_.empty() ? certain : std::max(certain, tokens_.back().end);
}

bool SpecialTokenSearch::add(AhoCorasick::State state, std::size_t end, std::size_t max_length) {
  const int32_t pattern = finder_.automaton_.longest_match(state, max_length);
  if (pattern == AhoCorasick::kNoPattern) return false;
  candidates_.push_back({static_cast<uint32_t>(finder_.automaton_.pattern_length(pattern)),
                         finder_.ids_[static_cast<std::size_t>(pattern)], static_cast<uint32_t>(end), state});
  return true;
}

void SpecialTokenSearch::find_candidates(std::string_view window) {
  const AhoCorasick& automaton = finder_.automaton_;
  candidates_.clear();
  steps_ += window.size();
  AhoCorasick::State state = AhoCorasick::kStart;
  for (std::size_t i = 0; i < window.size(); ++i) {
    if (state == AhoCorasick::kStart && !automaton.begins(window[i])) continue;
    state = automaton.next(state, window[i]);
    add(state, i + 1, i + 1);
  }
}

// Takes candidates longest first. What is taken already is no shorter than the candidate, so it can only cover the
// candidate's last byte (then nothing that ends there fits) or its first (then something shorter may). The second case
// at least halves the free gap before `end`, so each end returns to the queue a logarithmic number of times.
void SpecialTokenSearch::take_candidates(std::string_view window) {
  if (candidates_.empty()) return;
  taken_end_.assign(window.size(), 0);
  std::make_heap(candidates_.begin(), candidates_.end(), ComesLater{});
  while (!candidates_.empty()) {
    ++steps_;
    std::pop_heap(candidates_.begin(), candidates_.end(), ComesLater{});
    const Candidate c = candidates_.back();
    candidates_.pop_back();
    if (taken_end_[c.end - 1] != 0) continue;
    const std::size_t begin = c.end - c.length;
    if (const uint32_t blocked_to = taken_end_[begin]; blocked_to != 0) {
      if (add(c.state, c.end, c.end - blocked_to)) std::push_heap(candidates_.begin(), candidates_.end(), ComesLater{});
      continue;
    }
    std::fill(taken_end_.begin() + static_cast<std::ptrdiff_t>(begin), taken_end_.begin() + c.end, c.end);
    tokens_.push_back({begin, c.end, c.id});
  }
}

}  // namespace quire
