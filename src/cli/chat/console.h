// What a conversation writes: answers to standard output, everything else to standard error; dimmed and
// coloured where that is a terminal and nobody asked for no colours.
#pragma once

#include <string>
#include <string_view>

#include "server/protocol/reasoning.h"

namespace quire::cli {

// Text of a model for a terminal: control characters that are neither line break nor tab as \u001b, since
// they would steer it. Whole characters only.
std::string harmless(std::string_view text);

class Console {
 public:
  Console();

  bool colours() const { return error_colours_; }

  void say(std::string_view line) const;     // what was asked for: one or more lines
  void status(std::string_view line) const;  // dimmed
  void fail(std::string_view message) const;

  // One answer: its thinking, by the convention of chat templates, is dimmed, or marked where there are no
  // colours.
  void begin_answer(bool inside_thinking);
  void answer(std::string_view text);
  void end_answer();
  const std::string& thinking() const { return thinking_; }
  const std::string& content() const { return content_; }

 private:
  enum class Part { kNothing, kThinking, kContent };
  void write(const server::ReasoningSplitter::Output& out);
  void turn_to(Part part);

  bool output_terminal_, output_colours_, error_colours_;
  server::ReasoningSplitter splitter_;
  std::string thinking_, content_;
  Part part_ = Part::kNothing;
};

}  // namespace quire::cli
