#include "server/protocol/reasoning.h"

#include <algorithm>

namespace quire::server {
namespace {

constexpr std::string_view kOpen = kReasoningOpen, kClose = kReasoningClose, kWhite = " \t\r\n";

// How many bytes at the end of `text` begin `tag` without completing it.
size_t partial_tag(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}

}  // namespace

// White space before <think> is dropped, before anything else it is content.
bool ReasoningSplitter::at_start(Output& out) {
  const size_t begin = held_.find_first_not_of(kWhite);
  if (begin == std::string::npos) return false;
  const std::string_view rest = std::string_view(held_).substr(begin);
  if (rest.starts_with(kOpen)) {
    held_.erase(0, begin + kOpen.size());
    state_ = State::kReasoning;
    return true;
  }
  if (kOpen.starts_with(rest)) return false;
  state_ = State::kContent;
  out.content += held_;
  held_.clear();
  return false;
}

bool ReasoningSplitter::in_reasoning(Output& out) {
  if (!any_reasoning_) held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
  const size_t close = held_.find(kClose);
  size_t ready = close != std::string::npos ? close : held_.size() - partial_tag(held_, kClose);
  while (ready > 0 && held_[ready - 1] == '\n') --ready;
  out.reasoning += held_.substr(0, ready);
  any_reasoning_ = any_reasoning_ || ready > 0;
  if (close == std::string::npos) {
    held_.erase(0, ready);
    return false;
  }
  held_.erase(0, close + kClose.size());
  state_ = State::kGap;
  return true;
}

// One step of the automaton; false when more text is needed.
bool ReasoningSplitter::advance(Output& out) {
  switch (state_) {
    case State::kStart:
      return at_start(out);
    case State::kReasoning:
      return in_reasoning(out);
    case State::kGap:
      held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
      if (held_.empty()) return false;
      state_ = State::kContent;
      return true;
    case State::kContent:
      out.content += held_;
      held_.clear();
      return false;
  }
  return false;
}

ReasoningSplitter::Output ReasoningSplitter::push(std::string_view text) {
  Output out;
  held_ += text;
  while (advance(out)) {
  }
  return out;
}

ReasoningSplitter::Output ReasoningSplitter::flush() {
  Output out;
  if (state_ == State::kReasoning) {
    out.reasoning = std::move(held_);
    out.reasoning.erase(out.reasoning.find_last_not_of('\n') + 1);
  } else if (state_ != State::kGap) {
    out.content = std::move(held_);
  }
  held_.clear();
  return out;
}

bool ends_in_reasoning(std::string_view prompt) {
  const size_t open = prompt.rfind(kOpen);
  return open != std::string_view::npos &&
         prompt.find_first_not_of(kWhite, open + kOpen.size()) == std::string_view::npos;
}

}  // namespace quire::server
