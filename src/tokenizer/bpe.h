// Byte-pair encoding of one word.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/result.h"
#include "tokenizer/merge_rules.h"
#include "tokenizer/vocab.h"

namespace quire {

// The merge rules over symbols. A symbol is a text that merges can produce: its id is the token's if it is a token,
// else it counts on from the size of the vocabulary. Equal texts are one symbol, so rules work on ids even in a merge
// list whose intermediate results are no tokens.
class Bpe {
 public:
  using Symbol = MergeRules::Symbol;
  using Scratch = MergeRules::Scratch;

  // A byte that is no token becomes `unknown`, or is left out of words where there is none, before anything merges (as
  // the library `tokenizers` has it). Errors: a merge that does not parse or spells no bytes; no byte is a token.
  static Result<Bpe> create(const Vocab& vocab, std::span<const std::string_view> merges,
                            std::optional<TokenId> unknown = std::nullopt);

  // Appends the tokens of `word` (valid UTF-8, not empty, below 2^32 - 1 bytes): repeatedly merges the pair
  // of lowest rank, the leftmost of equals. What is left and no token becomes one token per byte. O(n log n).
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  Bpe() = default;
  Status find_byte_symbols(const Vocab& vocab, std::optional<TokenId> unknown);
  bool leaves_out(char byte) const { return byte_symbols_[static_cast<uint8_t>(byte)] == MergeRules::kNone; }

  std::array<Symbol, 256> byte_symbols_{};  // kNone: left out
  bool whole_ = true;                       // no byte is
  uint32_t token_count_ = 0;
  MergeRules rules_;
};

// "left right", cut at the first space that is not the first character; nothing if there is none or nothing behind it.
struct MergeParts {
  std::string_view left, right;
};
std::optional<MergeParts> parse_merge(std::string_view merge);

}  // namespace quire
