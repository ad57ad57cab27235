// Finding special tokens in raw text, before it is normalised and split into words.
#pragma once

#include <string_view>
#include <vector>

#include "core/id.h"
#include "tokenizer/aho_corasick.h"

namespace quire {

struct SpecialToken {
  std::string_view text;  // not empty, distinct; read only by the constructor
  TokenId id;
};

class SpecialTokenFinder {
 public:
  // A piece of the text: a special token, or (token < 0) ordinary text. Pieces tile the text; none is empty.
  struct Piece {
    std::size_t begin, end;
    TokenId token;
  };

  SpecialTokenFinder() = default;
  explicit SpecialTokenFinder(std::vector<SpecialToken> tokens);

  // Longest first, not leftmost first: a longer token wins over a shorter one that it overlaps, wherever it
  // stands. Equal lengths: the lower id first; equal tokens: from the left. O(n log n) for any text and any
  // set of tokens.
  std::vector<Piece> split(std::string_view text) const;

 private:
  AhoCorasick automaton_;
  std::vector<TokenId> ids_;  // by pattern
};

}  // namespace quire
