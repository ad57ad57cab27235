#include "engine/answer_stops.h"

#include <utility>

namespace quire {

std::string AnswerStops::push(std::string_view text, bool look) {
  std::string out;
  while (!text.empty() && !stopped()) {
    const bool settled = state_ == State::kAnswer && (!reasoning_ || !reasoning_->anywhere);
    if (settled) {
      answer(text, look, out);
      break;
    }
    take(text.front(), look, out);
    text.remove_prefix(1);
  }
  return out;
}

void AnswerStops::take(char c, bool look, std::string& out) {
  if (state_ == State::kReasoning) return reason(c, out);
  held_ += c;
  const std::string& open = reasoning_->open;
  const size_t white = state_ == State::kStart ? held_.find_first_not_of(" \t\r\n") : 0;
  if (white == std::string::npos) return;
  const std::string_view rest = std::string_view(held_).substr(white);
  if (rest == open) {
    out += stop_.flush();
    out += std::exchange(held_, {});
    state_ = State::kReasoning;
    return;
  }
  if (std::string_view(open).starts_with(rest)) return;
  state_ = State::kAnswer;
  // What is left may still begin in the middle of it.
  size_t ready = held_.size();
  if (reasoning_->anywhere)
    for (ready = 1; !std::string_view(open).starts_with(std::string_view(held_).substr(ready));) ++ready;
  answer(std::string_view(held_).substr(0, ready), look, out);
  held_.erase(0, ready);
}

void AnswerStops::reason(char c, std::string& out) {
  out += c;
  held_ += c;
  if (held_.size() > reasoning_->close.size()) held_.erase(0, 1);
  if (held_ != reasoning_->close) return;
  held_.clear();
  state_ = State::kAnswer;
}

void AnswerStops::answer(std::string_view text, bool look, std::string& out) {
  if (look)
    out += stop_.push(text).text;
  else
    out += text;
}

std::string AnswerStops::flush() {
  std::string out;
  if (state_ != State::kReasoning) answer(held_, true, out);
  held_.clear();
  return out + stop_.flush();
}

}  // namespace quire
