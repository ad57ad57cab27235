// Byte-pair merging: which pairs of symbols become one, and doing it.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// The rules (left, right) -> (rank, result) over symbols, which are numbers that stand for texts.
class MergeRules {
 public:
  using Symbol = uint32_t;
  static constexpr uint32_t kNone = ~uint32_t{0};

  MergeRules() = default;
  // Room for `count` rules.
  explicit MergeRules(std::size_t count);
  // A pair that repeats keeps its first rule. Ranks below kNone; several rules may share one.
  void add(Symbol left, Symbol right, uint32_t rank, Symbol result);

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

    // Makes `n` nodes (below kNone), each the neighbour of the next; their symbols are to be set.
    void reset(uint32_t n);
  };

  // Repeatedly merges the pair of lowest rank, the leftmost of equals. What is left begins at node 0, which is never
  // merged into another. O(n log n).
  void apply(Scratch& scratch) const;

 private:
  struct Rule {
    uint64_t pair = ~uint64_t{0};  // left << 32 | right; the default marks a free slot
    uint32_t rank = kNone;
    Symbol result = 0;
  };

  std::size_t slot(uint64_t pair) const;
  const Rule* find(Symbol left, Symbol right) const;
  void update_pair(Scratch& scratch, uint32_t left, bool queued) const;
  void merge_with_next(Scratch& scratch, uint32_t left, bool queued) const;
  void merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch) const;

  std::vector<Rule> rules_;  // open addressing, at most half full, a power of two
  uint64_t seed_ = 0;
};

}  // namespace quire
