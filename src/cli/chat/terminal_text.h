// Text of a model on its way to standard output.
#pragma once

#include <string>
#include <string_view>

#include "cli/chat/word_wrap.h"

namespace quire::cli {

// Text of a model for a terminal: control characters that are neither line break nor tab as \u001b, since
// they would steer it. Whole characters only.
std::string harmless(std::string_view text);

// Where standard output is a terminal, text is made harmless, and wraps at blanks if it is to; else it stays as it is.
class TerminalText {
 public:
  explicit TerminalText(bool wraps);

  void set_wraps(bool wraps) { wraps_ = wraps; }
  // At the beginning of a line.
  void begin() { wrap_.restart(); }
  // Written and flushed at once.
  void write(std::string_view text);

 private:
  bool terminal_, steers_, wraps_;
  WordWrap wrap_;
};

}  // namespace quire::cli
