// Tells a model's reasoning from its answer in streamed text, by the convention of chat templates: the reasoning stands
// between <think> and </think>, which the prompt may already have opened.
#pragma once

#include <string>
#include <string_view>

namespace quire::server {

inline constexpr std::string_view kReasoningOpen = "<think>", kReasoningClose = "</think>";

class ReasoningSplitter {
 public:
  // `inside`: the prompt ends within an open <think>.
  explicit ReasoningSplitter(bool inside = false) : state_(inside ? State::kReasoning : State::kStart) {}

  struct Output {
    std::string reasoning, content;
  };
  // Text that may yet become a tag, and line breaks that may yet end the reasoning, are held back, however the
  // stream is cut. Line breaks around the reasoning belong to neither part, as templates strip them.
  Output push(std::string_view text);
  // The end of the text: what was held back.
  Output flush();
  bool in_reasoning() const { return state_ == State::kReasoning; }
  // No reasoning can follow, and nothing is held back.
  bool in_content() const { return state_ == State::kContent; }

 private:
  enum class State {
    kStart,      // nothing but white space so far: <think> may come
    kReasoning,  // until </think>
    kGap,        // line breaks after </think>
    kContent,    // whatever comes
  };
  bool advance(Output& out);
  bool at_start(Output& out);
  bool in_reasoning(Output& out);

  State state_;
  std::string held_;
  bool any_reasoning_ = false;  // reasoning was emitted: line breaks before it are no longer skipped
};

// Whether a prompt ends within an open <think>: after the last one comes white space only.
bool ends_in_reasoning(std::string_view prompt);

}  // namespace quire::server
