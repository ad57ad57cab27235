// Remembers the tokens of words during one encode call: natural text repeats its words.
#pragma once

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "tokenizer/vocab.h"

namespace quire {

// Direct-mapped and of fixed size. It belongs to one call, so threads share nothing and a result cannot
// depend on what was encoded before; short texts do not pay for it (memory is taken on the first put).
class WordCache {
 public:
  static constexpr std::size_t kSlots = 4096;
  static constexpr std::size_t kMaxWord = 24, kMaxTokens = 8;

  // The tokens of `word`, or an empty span.
  std::span<const TokenId> find(std::string_view word) const {
    if (slots_.empty() || word.size() > kMaxWord) return {};
    const Slot& s = slots_[index(word)];
    if (s.size != word.size() || std::memcmp(s.word, word.data(), s.size) != 0) return {};
    return {s.tokens, s.count};
  }
  void put(std::string_view word, std::span<const TokenId> tokens) {
    if (word.size() > kMaxWord || tokens.size() > kMaxTokens) return;
    if (slots_.empty()) slots_.resize(kSlots);
    Slot& s = slots_[index(word)];
    s.size = static_cast<uint8_t>(word.size());
    s.count = static_cast<uint8_t>(tokens.size());
    std::memcpy(s.word, word.data(), word.size());
    std::copy(tokens.begin(), tokens.end(), s.tokens);
  }

 private:
  struct Slot {
    TokenId tokens[kMaxTokens];
    char word[kMaxWord];
    uint8_t size = 0, count = 0;  // size 0: free
  };
  static std::size_t index(std::string_view word) { return SeededHash{}(word) % kSlots; }
  std::vector<Slot> slots_;
};

}  // namespace quire
