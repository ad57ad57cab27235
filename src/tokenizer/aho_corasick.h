// Finds every occurrence of many strings in one pass over a text (Aho and Corasick, 1975).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace quire {

class AhoCorasick {
 public:
  using State = uint32_t;  // which longest suffix of the text so far begins a pattern
  static constexpr State kStart = 0;
  static constexpr int32_t kNoPattern = -1;

  AhoCorasick() = default;
  // Patterns must be distinct, not empty, and together shorter than 2^31 bytes. Their index is their name.
  explicit AhoCorasick(std::span<const std::string_view> patterns);

  bool empty() const { return nodes_.empty(); }
  State next(State state, char byte) const;
  // True when `byte` can begin a pattern.
  bool begins(char byte) const { return !empty() && root_next_[static_cast<uint8_t>(byte)] != kStart; }
  // Length of the suffix that a state stands for.
  std::size_t depth(State state) const { return nodes_[state].depth; }

  // The longest pattern of at most `max_length` bytes that ends here, or kNoPattern. O(log of how many end
  // here).
  int32_t longest_match(State state, std::size_t max_length) const;
  std::size_t pattern_length(int32_t pattern) const { return lengths_[static_cast<std::size_t>(pattern)]; }

 private:
  struct Node {
    uint32_t first_edge = 0, edge_count = 0;  // in edges_, sorted by byte
    State fail = kStart;                      // the longest proper suffix that is also a node
    State match = kStart;  // this node if a pattern ends here, else the nearest such node along `fail`; root: none
    // The chain of patterns that end at a `match` node, longest first, with skip pointers over it (Myers,
    // 1983).
    State shorter = kStart, skip = kStart;
    uint32_t rank = 0;  // how many patterns the chain holds from here on
    uint32_t depth = 0;
    int32_t pattern = kNoPattern;
  };
  struct Edge {
    uint8_t byte;
    State to;
  };

  State child(State state, uint8_t byte) const;
  void build_trie(std::span<const std::string_view> patterns);
  void link();

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<uint32_t> lengths_;
  std::array<State, 256> root_next_{};
};

}  // namespace quire
