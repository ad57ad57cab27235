// What a conversation writes: answers to standard output, everything else to standard error; dimmed and
// coloured where that is a terminal and nobody asked for no colours.
#pragma once

#include <string>
#include <string_view>

#include "cli/chat/terminal_text.h"
#include "server/protocol/reasoning.h"

namespace quire::cli {

class Console {
 public:
  Console();

  bool colours() const { return error_colours_; }
  // Whether answers wrap between words at a terminal.
  void set_wraps(bool wraps) { text_.set_wraps(wraps); }

  void say(std::string_view line) const;     // what was asked for: one or more lines
  void status(std::string_view line) const;  // dimmed
  void fail(std::string_view message) const;

  // One answer: its thinking, by the convention of chat templates, is dimmed, or marked where there are no
  // colours.
  void begin_answer(bool inside_thinking);
  void answer(std::string_view text);
  // A piece of an answer that comes with its thinking apart.
  void answer_parts(std::string_view thinking, std::string_view content);
  void end_answer();
  const std::string& thinking() const { return thinking_; }
  const std::string& content() const { return content_; }

 private:
  enum class Part { kNothing, kThinking, kContent };
  void turn_to(Part part);

  bool output_colours_, error_colours_;
  TerminalText text_{true};
  server::ReasoningSplitter splitter_;
  std::string thinking_, content_;
  Part part_ = Part::kNothing;
};

}  // namespace quire::cli
