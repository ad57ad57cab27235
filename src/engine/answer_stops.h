// Stop texts in the part of a text that is the answer. Internal to the engine.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/request.h"
#include "tokenizer/stop_matcher.h"

namespace quire {

// Passes text on, and ends it at a stop text, but for what stands in reasoning: that passes as it is. What may yet
// become a stop text, or the beginning of reasoning, is held back, however the text is cut.
class AnswerStops {
 public:
  // `reasoning`: null where stop texts are looked for everywhere.
  AnswerStops(StopMatcher stop, std::optional<ReasoningMarks> reasoning)
      : stop_(std::move(stop)), reasoning_(std::move(reasoning)) {
    if (reasoning_) state_ = reasoning_->inside ? State::kReasoning : State::kStart;
  }

  // What is certain by now, to be emitted. `look`: otherwise no stop text is looked for in it. After a stop, nothing.
  std::string push(std::string_view text, bool look = true);
  // The end of the text: what was held back, and is not a stop text.
  std::string flush();
  bool stopped() const { return stop_.stopped(); }
  int stop_index() const { return stop_.stop_index(); }  // of the text that was found; -1: none was

 private:
  enum class State { kStart, kReasoning, kAnswer };  // kStart: nothing but white space so far
  void take(char c, bool look, std::string& out);
  void reason(char c, std::string& out);
  void answer(std::string_view text, bool look, std::string& out);

  StopMatcher stop_;
  std::optional<ReasoningMarks> reasoning_;
  State state_ = State::kAnswer;
  std::string held_;  // may become reasoning_->open; in reasoning the last bytes, which may end it
};

}  // namespace quire
