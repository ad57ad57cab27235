// Tokens to text while they are generated.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/id.h"
#include "tokenizer/tokenizer.h"

namespace quire {

// Turns tokens into text one by one and never shows half a character: at most 3 bytes wait for their
// character to complete. The texts of all pushes and the flush, put together, are Tokenizer::decode of all
// tokens: valid UTF-8, with U+FFFD for bytes that cannot become a character. `tokenizer` must outlive it.
class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Tokenizer& tokenizer, bool render_special = false)
      : tokenizer_(&tokenizer), render_special_(render_special) {}

  std::string push(TokenId token);
  // The end of the text: what still waits becomes U+FFFD. The object may be used again for a new text.
  std::string flush();
  std::size_t held_bytes() const { return held_.size(); }

 private:
  const Tokenizer* tokenizer_;
  bool render_special_;
  std::string held_;  // the beginning of a character
};

}  // namespace quire
