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
// tokens: valid UTF-8, with U+FFFD for bytes that cannot become a character, and without the space that a whole text
// of SentencePiece begins with. `tokenizer` must outlive it.
class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Tokenizer& tokenizer, bool render_special = false, TextPart part = TextPart::kWhole)
      : tokenizer_(&tokenizer),
        render_special_(render_special),
        drops_space_(part == TextPart::kWhole && tokenizer.drops_spaces()),
        at_begin_(drops_space_) {}

  std::string push(TokenId token);
  // The end of the text: what still waits becomes U+FFFD. The object may be used again for a new text.
  std::string flush();
  std::size_t held_bytes() const { return held_.size(); }

 private:
  std::string shown(std::string text);

  const Tokenizer* tokenizer_;
  bool render_special_;
  bool drops_space_, at_begin_;  // at_begin_: spaces that come next are dropped
  std::string held_;             // the beginning of a character
};

}  // namespace quire
