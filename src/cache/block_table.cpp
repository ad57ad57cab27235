#include "cache/block_table.h"

#include <algorithm>

namespace quire {
namespace {

int64_t blocks_for(int64_t positions) {
  return (positions + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

int32_t BlockTable::blocks_needed(const BlockPool& pool, int64_t begin, int64_t end) const {
  const auto have = static_cast<int64_t>(blocks_.size());
  int64_t needed = std::max<int64_t>(0, blocks_for(end) - have);
  for (int64_t i = begin / kBlockTokens; i < std::min(have, blocks_for(end)); ++i)
    needed += pool.references(BlockId{blocks_[static_cast<size_t>(i)]}) > 1;
  return static_cast<int32_t>(needed);
}

bool BlockTable::reserve(BlockPool& pool, int64_t begin, int64_t end, std::vector<BlockCopy>& copies) {
  if (begin >= end) return true;
  if (blocks_needed(pool, begin, end) > pool.available()) return false;
  pool_ = &pool;
  const auto have = static_cast<int64_t>(blocks_.size());
  for (int64_t i = begin / kBlockTokens; i < std::min(have, blocks_for(end)); ++i) {
    int32_t& b = blocks_[static_cast<size_t>(i)];
    if (pool.references(BlockId{b}) == 1) continue;
    const BlockId copy = pool.allocate();
    copies.emplace_back(b, copy.v);
    pool.release(BlockId{b});
    b = copy.v;
  }
  while (static_cast<int64_t>(blocks_.size()) < blocks_for(end)) blocks_.push_back(pool.allocate().v);
  return true;
}

void BlockTable::append_shared(BlockPool& pool, BlockId block, uint32_t generation) {
  QUIRE_CHECK(pool.revive(block, generation), "block {} was written again", block.v);
  pool_ = &pool;
  blocks_.push_back(block.v);
}

BlockTable BlockTable::fork(BlockPool& pool) const {
  BlockTable t;
  t.blocks_ = blocks_;
  t.pool_ = &pool;
  for (int32_t b : t.blocks_) pool.retain(BlockId{b});
  return t;
}

void BlockTable::truncate(BlockPool& pool, int64_t positions) {
  // Last block first: the list hands out the oldest release first, so a sequence's beginning survives
  // longest.
  while (static_cast<int64_t>(blocks_.size()) > blocks_for(positions)) {
    pool.release(BlockId{blocks_.back()});
    blocks_.pop_back();
  }
}

}  // namespace quire
