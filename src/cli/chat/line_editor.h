// Lines typed at a terminal: editing and history by libedit, bracketed paste, and a Ctrl-C that clears the
// line.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cli/chat/commands.h"

namespace quire::cli {

struct TypedLine {
  enum class End {
    kLine,       // Enter
    kInterrupt,  // Ctrl-C: `text` is empty
    kEndOfFile,  // Ctrl-D on an empty line, or the terminal is gone
  };
  End end = End::kEndOfFile;
  std::string text;  // valid UTF-8, without the line break; pasted text may have some inside
};

// Needs a CancelKey that lives (cli/run.h): that notes Ctrl-C, and read() takes the note. Reads standard
// input, which must be a terminal, and echoes to standard error, so that standard output holds answers only.
// Where standard error is none, lines are read without editing.
class LineEditor {
 public:
  // Lines of earlier sessions come from `history_path`, and remember() adds to it; empty: no file. A file
  // that cannot be read or written is done without. It is made with mode 0600, in folders of 0700.
  LineEditor(std::string history_path, bool colours);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // What Tab offers for a line up to the cursor, if nothing else: a tab.
  void set_completer(std::function<Completion(std::string_view)> completer);
  // Shows `prompt` (plain text) and waits for a line, which begins as `draft` and can be changed where lines are
  // edited.
  TypedLine read(std::string_view prompt, std::string_view draft = {});
  // For the arrow keys, now and in later sessions. Line breaks inside are kept; a repeated line is kept once.
  void remember(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// $XDG_STATE_HOME/quire/chat_history, or that in ~/.local/state; empty if neither is known. With NO_COLOR and
// TERM (console.cpp) all that the program reads of the environment: users of terminals expect it there (XDG
// Base Directory Specification 0.8).
std::string history_file();

}  // namespace quire::cli
