#include "tokenizer/merge_rules.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "tokenizer/vocab.h"

namespace quire {
namespace {

// Words of up to this many symbols scan for the best pair: below it that beats keeping a heap.
constexpr std::size_t kShortWord = 48;

}  // namespace

MergeRules::MergeRules(std::size_t count) : rules_(std::bit_ceil(2 * count + 2)), seed_(SeededHash::seed() | 1) {}

// Multiplicative hashing by a random odd number: which pairs collide cannot be known when a file is made.
std::size_t MergeRules::slot(uint64_t pair) const {
  const auto product = static_cast<unsigned __int128>(pair ^ seed_) * (seed_ * 0x9E3779B97F4A7C15u | 1);
  return (static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product)) & (rules_.size() - 1);
}

void MergeRules::add(Symbol left, Symbol right, uint32_t rank, Symbol result) {
  const uint64_t pair = uint64_t{left} << 32 | right;
  for (std::size_t i = slot(pair);; i = (i + 1) & (rules_.size() - 1)) {
    if (rules_[i].pair == pair) return;
    if (rules_[i].rank == kNone) {
      rules_[i] = {pair, rank, result};
      return;
    }
  }
}

const MergeRules::Rule* MergeRules::find(Symbol left, Symbol right) const {
  const uint64_t pair = uint64_t{left} << 32 | right;
  for (std::size_t i = slot(pair); rules_[i].rank != kNone; i = (i + 1) & (rules_.size() - 1)) {
    if (rules_[i].pair == pair) return &rules_[i];
  }
  return nullptr;
}

void MergeRules::Scratch::reset(uint32_t n) {
  nodes.resize(n);
  static_assert(uint32_t{0} - 1 == kNone, "the first node has no previous one");
  for (uint32_t i = 0; i < n; ++i) nodes[i] = {0, i - 1, i + 1 < n ? i + 1 : kNone, kNone, 0};
}

void MergeRules::update_pair(Scratch& scratch, uint32_t left, bool queued) const {
  auto& node = scratch.nodes[left];
  node.pair_rank = kNone;
  if (node.next == kNone) return;
  const Rule* rule = find(node.symbol, scratch.nodes[node.next].symbol);
  if (rule == nullptr) return;
  node.pair_rank = rule->rank;
  node.pair_result = rule->result;
  if (!queued) return;
  scratch.queue.push_back(uint64_t{rule->rank} << 32 | left);
  std::push_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>{});
}

// The right neighbour goes into `left`. Two pairs change: the one that ends in `left` and the one that begins
// there.
void MergeRules::merge_with_next(Scratch& scratch, uint32_t left, bool queued) const {
  auto& nodes = scratch.nodes;
  const uint32_t gone = nodes[left].next;
  nodes[left].symbol = nodes[left].pair_result;
  nodes[left].next = nodes[gone].next;
  if (nodes[left].next != kNone) nodes[nodes[left].next].previous = left;
  nodes[gone].pair_rank = kNone;  // makes its queue entry stale
  update_pair(scratch, left, queued);
  if (nodes[left].previous != kNone) update_pair(scratch, nodes[left].previous, queued);
}

void MergeRules::merge_short(Scratch& scratch) const {
  const auto& nodes = scratch.nodes;
  while (true) {
    uint32_t best = 0;
    for (uint32_t i = 0; i != kNone; i = nodes[i].next) {
      if (nodes[i].pair_rank < nodes[best].pair_rank) best = i;
    }
    if (nodes[best].pair_rank == kNone) return;
    merge_with_next(scratch, best, false);
  }
}

void MergeRules::merge_long(Scratch& scratch) const {
  auto& queue = scratch.queue;
  queue.clear();
  for (uint32_t i = 0; i < scratch.nodes.size(); ++i) {
    if (scratch.nodes[i].pair_rank != kNone) queue.push_back(uint64_t{scratch.nodes[i].pair_rank} << 32 | i);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>{});
  while (!queue.empty()) {
    const auto rank = static_cast<uint32_t>(queue.front() >> 32);
    const auto left = static_cast<uint32_t>(queue.front());
    std::pop_heap(queue.begin(), queue.end(), std::greater<>{});
    queue.pop_back();
    // An entry is stale when the pair at `left` changed since. (Where its rank is the same, it is that pair's turn
    // after all.)
    if (scratch.nodes[left].pair_rank == rank) merge_with_next(scratch, left, true);
  }
}

void MergeRules::apply(Scratch& scratch) const {
  const auto n = static_cast<uint32_t>(scratch.nodes.size());
  for (uint32_t i = 0; i < n; ++i) update_pair(scratch, i, false);
  n <= kShortWord ? merge_short(scratch) : merge_long(scratch);
}

}  // namespace quire
