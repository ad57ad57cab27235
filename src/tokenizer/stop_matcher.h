// Stop strings in streamed text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "tokenizer/aho_corasick.h"

namespace quire {

// Text passes through until a stop string is complete; text that may yet become one is held back, however the
// stream is cut. The stop string that completes first wins, of several that complete together the longest. It
// is not emitted.
class StopMatcher {
 public:
  // At most 1024 stop strings of 64 KiB together. An empty one, or one that is not valid UTF-8 (it could cut
  // a character in two), is a request error.
  static Status check(std::span<const std::string> stops);
  // Of stop strings that pass check(). No stop strings: everything passes at once.
  static Result<StopMatcher> create(std::span<const std::string> stops);

  struct Output {
    std::string text;  // to emit now; whole characters if the input was
    bool stopped = false;
  };
  // Takes the next piece of text. After a stop, nothing more is emitted.
  Output push(std::string_view text);
  // The end of the text: what was held back and is no stop string after all.
  std::string flush();

  bool stopped() const { return stop_ >= 0; }
  int stop_index() const { return stop_; }  // which stop string was found, or -1
  void reset();

 private:
  AhoCorasick automaton_;
  std::vector<int> indices_;  // of the automaton's patterns among the stop strings, which may repeat
  AhoCorasick::State state_ = AhoCorasick::kStart;
  std::string held_;  // always a beginning of a stop string
  int stop_ = -1;
};

}  // namespace quire
