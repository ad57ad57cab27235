// Tables over characters, for merging text character by character.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "tokenizer/merge_rules.h"

namespace quire {

// A symbol for each character that has one. Pages of 256 characters, of which only those in use take memory.
class CharSymbols {
 public:
  using Symbol = MergeRules::Symbol;
  CharSymbols() : cells_(kPage, MergeRules::kNone) {}

  // kNone where there is none.
  Symbol find(char32_t c) const { return cells_[size_t{pages_[c >> 8]} * kPage + (c & 0xFF)]; }
  void set(char32_t c, Symbol symbol) {
    uint16_t& page = pages_[c >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(cells_.size() / kPage);
      cells_.resize(cells_.size() + kPage, MergeRules::kNone);
    }
    cells_[size_t{page} * kPage + (c & 0xFF)] = symbol;
  }

 private:
  static constexpr size_t kPage = 256;
  std::array<uint16_t, 0x1100> pages_{};  // page 0 is empty
  std::vector<Symbol> cells_;
};

// The pairs of neighbours that some token has inside. Between two characters that are no such pair no merge can reach
// across, whatever its order, so text may be cut there.
class InnerPairs {
 public:
  void add(char32_t a, char32_t b) {
    if (a < 0x80 && b < 0x80)
      ascii_[a * 2 + b / 64] |= uint64_t{1} << b % 64;
    else
      others_.push_back(key(a, b));
  }
  // To be called once, after the last pair.
  void finish(uint64_t seed);

  bool contains(char32_t a, char32_t b) const {
    if (a < 0x80 && b < 0x80) return (ascii_[a * 2 + b / 64] >> b % 64 & 1) != 0;
    return find_other(key(a, b));
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t key(char32_t a, char32_t b) { return uint64_t{a} << 32 | b; }
  size_t slot(uint64_t key) const;
  bool find_other(uint64_t key) const {
    for (size_t i = slot(key); others_[i] != kFree; i = (i + 1) & (others_.size() - 1))
      if (others_[i] == key) return true;
    return false;
  }

  std::array<uint64_t, 256> ascii_{};
  std::vector<uint64_t> others_;  // a list until finish(), then open addressing
  uint64_t seed_ = 0;
};

}  // namespace quire
