// Byte-pair encoding of one word.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/result.h"
#include "tokenizer/vocab.h"

namespace quire {

// The merge rules: (left, right) -> (rank, result), over symbols. A symbol is a text that merges can produce:
// its id is the token's if it is a token, else it counts on from the size of the vocabulary. Equal texts are
// one symbol, so rules work on ids even in a merge list whose intermediate results are no tokens.
class Bpe {
 public:
  using Symbol = uint32_t;
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Errors: a merge that does not parse or spells no bytes; no token for a byte that occurs in UTF-8.
  static Result<Bpe> create(const Vocab& vocab, std::span<const std::string_view> merges);

  // Working memory, reused from word to word.
  struct Scratch {
    struct Node {
      Symbol symbol;
      uint32_t previous, next;  // neighbours; kNone at the ends
      uint32_t pair_rank;       // of (this, next); kNone if they do not merge
      Symbol pair_result;
    };
    std::vector<Node> nodes;
    std::vector<uint64_t> queue;  // min-heap of rank << 32 | left node
  };

  // Appends the tokens of `word` (valid UTF-8, not empty, below 2^32 - 1 bytes): repeatedly merges the pair
  // of lowest rank, the leftmost of equals. What is left and no token becomes one token per byte. O(n log n).
  void encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Rule {
    uint64_t pair = ~uint64_t{0};  // left << 32 | right; the default marks a free slot
    uint32_t rank = kNone;
    Symbol result = 0;
  };

  Bpe() = default;
  Status find_byte_symbols(const Vocab& vocab);
  std::size_t slot(uint64_t pair) const;
  void add_rule(uint64_t pair, uint32_t rank, Symbol result);
  const Rule* find_rule(Symbol left, Symbol right) const;
  void update_pair(Scratch& scratch, uint32_t left, bool queued) const;
  void merge_with_next(Scratch& scratch, uint32_t left, bool queued) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::array<Symbol, 256> byte_symbols_{};
  uint32_t token_count_ = 0;
  std::vector<Rule> rules_;  // open addressing, at most half full, a power of two
  uint64_t seed_ = 0;
};

}  // namespace quire
