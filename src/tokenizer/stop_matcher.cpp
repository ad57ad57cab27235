#include "tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::size_t kMaxStops = 1024, kMaxStopBytes = std::size_t{64} << 10;

}  // namespace

Status StopMatcher::check(std::span<const std::string> stops) {
  if (stops.size() > kMaxStops) {
    return request_error("there are {} stop strings; at most {} are allowed", stops.size(), kMaxStops);
  }
  std::size_t total = 0;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) return request_error("stop string {} is empty: nothing could be generated before it", i + 1);
    if (!unicode::is_valid_utf8(stops[i])) return request_error("stop string {} is not valid UTF-8", i + 1);
    total += stops[i].size();
  }
  if (total > kMaxStopBytes) {
    return request_error("the stop strings have {} bytes together; at most {} are allowed", total, kMaxStopBytes);
  }
  return {};
}

Result<StopMatcher> StopMatcher::create(std::span<const std::string> stops) {
  QUIRE_CHECKED(check(stops));
  StopMatcher matcher;
  std::vector<std::string_view> patterns;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    if (std::find(patterns.begin(), patterns.end(), stops[i]) != patterns.end()) continue;
    patterns.emplace_back(stops[i]);
    matcher.indices_.push_back(static_cast<int>(i));
  }
  matcher.automaton_ = AhoCorasick(patterns);
  return matcher;
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  if (stopped()) return {{}, true};
  if (automaton_.empty()) return {std::string(text), false};
  held_ += text;
  const std::size_t old = held_.size() - text.size();
  for (std::size_t i = 0; i < text.size(); ++i) {
    state_ = automaton_.next(state_, text[i]);
    const int32_t pattern = automaton_.longest_match(state_, held_.size());
    if (pattern == AhoCorasick::kNoPattern) continue;
    stop_ = indices_[static_cast<std::size_t>(pattern)];
    held_.resize(old + i + 1 - automaton_.pattern_length(pattern));
    return {std::exchange(held_, {}), true};
  }
  const std::size_t ready = held_.size() - automaton_.depth(state_);
  Output output{held_.substr(0, ready), false};
  held_.erase(0, ready);
  return output;
}

std::string StopMatcher::flush() {
  state_ = AhoCorasick::kStart;
  return std::exchange(held_, {});
}

void StopMatcher::reset() {
  state_ = AhoCorasick::kStart;
  held_.clear();
  stop_ = -1;
}

}  // namespace quire
