// Text between special tokens to tokens: what the families of tokenizers do differently.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "tokenizer/merge_rules.h"
#include "tokenizer/vocab.h"
#include "tokenizer/word_cache.h"

namespace quire {

// Working memory and result of one call of Tokenizer::encode.
struct EncodeState {
  bool use_cache = false;
  WordCache cache;
  MergeRules::Scratch scratch;
  std::u32string code_points;
  std::string text, word;
  std::vector<TokenId> tokens;
  std::size_t stretch_begin = 0;  // tokens before this one are of other stretches
};

// Where a stretch of text stands.
struct Before {
  bool nothing = false;            // the whole text begins here
  std::optional<TokenId> special;  // the special token that it stands behind
};

// Immutable.
class RawEncoder {
 public:
  virtual ~RawEncoder() = default;

  // Appends the tokens of `text`, any bytes, not empty; a byte that belongs to no UTF-8 character counts as U+FFFD.
  virtual void encode(std::string_view text, const Before& before, const Vocab& vocab, EncodeState& state) const = 0;
  // Does encode put a space before a text that does not begin with one? Decoding takes it away again.
  virtual bool adds_space(const Before& before, const Vocab& vocab) const = 0;
  // Is text brought into NFC first?
  virtual bool nfc() const = 0;
};

}  // namespace quire
