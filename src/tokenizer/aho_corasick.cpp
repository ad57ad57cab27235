#include "tokenizer/aho_corasick.h"

#include <algorithm>
#include <numeric>

namespace quire {

AhoCorasick::AhoCorasick(std::span<const std::string_view> patterns) {
  if (patterns.empty()) return;
  lengths_.reserve(patterns.size());
  for (const std::string_view p : patterns) lengths_.push_back(static_cast<uint32_t>(p.size()));
  build_trie(patterns);
  link();
}

// Level by level over the sorted patterns: the patterns that share a node are neighbours, so each node's
// edges come out together and in order, and nodes are numbered by depth, which is the order in which link()
// needs them.
void AhoCorasick::build_trie(std::span<const std::string_view> patterns) {
  std::vector<int32_t> order(patterns.size());
  std::iota(order.begin(), order.end(), 0);
  const auto text = [&](std::size_t i) { return patterns[static_cast<std::size_t>(order[i])]; };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return patterns[static_cast<std::size_t>(a)] < patterns[static_cast<std::size_t>(b)];
  });

  struct Group {
    std::size_t begin, end;  // of `order`: the patterns below this node
  };
  std::vector<Group> groups{{0, order.size()}};  // groups[n] belongs to nodes_[n]
  nodes_.emplace_back();
  for (State n = 0; n < nodes_.size(); ++n) {
    auto [i, end] = groups[n];
    const uint32_t depth = nodes_[n].depth;
    if (text(i).size() == depth && depth > 0) nodes_[n].pattern = order[i++];  // the shortest sorts first
    nodes_[n].first_edge = static_cast<uint32_t>(edges_.size());
    while (i < end) {
      const char byte = text(i)[depth];
      std::size_t j = i + 1;
      while (j < end && text(j)[depth] == byte) ++j;
      edges_.push_back({static_cast<uint8_t>(byte), static_cast<State>(nodes_.size())});
      nodes_.emplace_back().depth = depth + 1;
      groups.push_back({i, j});
      i = j;
    }
    nodes_[n].edge_count = static_cast<uint32_t>(edges_.size()) - nodes_[n].first_edge;
  }
}

void AhoCorasick::link() {
  for (uint32_t e = 0; e < nodes_[kStart].edge_count; ++e) root_next_[edges_[e].byte] = edges_[e].to;
  for (State n = 0; n < nodes_.size(); ++n) {  // parents come before children, and shorter suffixes before longer
    Node& node = nodes_[n];
    if (node.pattern != kNoPattern) {
      node.shorter = nodes_[node.fail].match;
      node.rank = nodes_[node.shorter].rank + 1;
      // Skip two jumps of equal length at once, else one step: any rank is then reached in O(log rank).
      const Node& below = nodes_[node.shorter];
      const State over = nodes_[below.skip].skip;
      const bool equal = below.rank - nodes_[below.skip].rank == nodes_[below.skip].rank - nodes_[over].rank;
      node.skip = equal && below.rank > 0 ? over : node.shorter;
      node.match = n;
    } else {
      node.match = nodes_[node.fail].match;
    }
    for (uint32_t e = node.first_edge; e < node.first_edge + node.edge_count; ++e) {
      nodes_[edges_[e].to].fail = n == kStart ? kStart : next(node.fail, static_cast<char>(edges_[e].byte));
    }
  }
}

AhoCorasick::State AhoCorasick::child(State state, uint8_t byte) const {
  const Edge* begin = edges_.data() + nodes_[state].first_edge;
  const Edge* end = begin + nodes_[state].edge_count;
  const Edge* edge = std::lower_bound(begin, end, byte, [](const Edge& e, uint8_t b) { return e.byte < b; });
  return edge != end && edge->byte == byte ? edge->to : kStart;
}

AhoCorasick::State AhoCorasick::next(State state, char byte) const {
  const auto b = static_cast<uint8_t>(byte);
  while (state != kStart) {
    if (const State to = child(state, b); to != kStart) return to;
    state = nodes_[state].fail;
  }
  return root_next_[b];
}

int32_t AhoCorasick::longest_match(State state, std::size_t max_length) const {
  State n = nodes_[state].match;
  while (n != kStart && nodes_[n].depth > max_length) {
    const State skip = nodes_[n].skip;
    n = skip != kStart && nodes_[skip].depth > max_length ? skip : nodes_[n].shorter;
  }
  return nodes_[n].pattern;  // kNoPattern at the root
}

}  // namespace quire
