// Drafts from the text itself: what followed the last tokens of a sequence where they occurred before, in its prompt or
// its output. Whoever repeats files, tables or quotations is drafted right; no model is needed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// The tokens of one sequence, found by hashes of every 8 in a row. Only committed tokens are appended, so nothing is
// ever taken back. One thread at a time.
class LookupDrafter {
 public:
  static constexpr int32_t kLeastMatch = 8;     // shorter matches are mostly chance, and waste rows
  static constexpr int32_t kMostCompared = 64;  // of a match; longer ones count as equally long
  static constexpr int32_t kCandidates = 32;    // latest places with the hash of the last 8 tokens that are looked at

  struct Draft {
    int32_t count = 0;    // tokens drafted: none, or as many as there was room for
    int32_t matched = 0;  // how many tokens match before them, kLeastMatch to kMostCompared; 0: none
  };

  // Appends tokens: amortised constant work for each. At most 2^31 - 1 in all.
  void append(std::span<const int32_t> tokens);

  // Drafts the next draft.size() tokens: those after the longest match among the candidates and the place that the
  // draft before came from, if it went on as drafted; after the latest of the longest. A text that repeats a few tokens
  // up to its end is taken to go on so. Work: at most kCandidates * kMostCompared comparisons.
  Draft propose(std::span<int32_t> draft);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  // Memory taken: 12 bytes for each token there is room for, which is at most twice those there are (from 1024 on).
  int64_t bytes() const;

 private:
  size_t bucket_of(size_t end) const;
  // How many tokens before `end` equal those at the end of the text, up to kMostCompared.
  int32_t match_before(int32_t end) const;
  void enter(size_t end);
  void grow(size_t tokens);

  std::vector<int32_t> tokens_;
  // Places are named by the number of tokens up to their end. head_: of each bucket of hashes the latest, 0 if none;
  // before_[p - 1]: the next older one than p.
  std::vector<int32_t> head_, before_;
  int32_t followed_ = 0;  // the place that would be drafted from if the text goes on as it did there; 0: none
};

}  // namespace quire
