#include "cache/block_table.h"

#include <algorithm>

namespace quire {
namespace {

int64_t blocks_for(int64_t positions) {
  return (positions + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

int32_t BlockTable::blocks_needed(int64_t end) const {
  return static_cast<int32_t>(std::max<int64_t>(0, blocks_for(end) - std::ssize(blocks_)));
}

bool BlockTable::reserve(BlockPool& pool, int64_t begin, int64_t end) {
  if (begin >= end) return true;
  if (blocks_needed(end) > pool.available()) return false;
  pool_ = &pool;
  for (auto i = static_cast<size_t>(begin / kBlockTokens); i < blocks_.size(); ++i)
    QUIRE_CHECK(pool.references(BlockId{blocks_[i]}) == 1, "block {} is written while {} tables have it", blocks_[i],
                pool.references(BlockId{blocks_[i]}));
  while (std::ssize(blocks_) < blocks_for(end)) blocks_.push_back(pool.allocate().v);
  return true;
}

void BlockTable::append_shared(BlockPool& pool, BlockId block, uint32_t generation) {
  QUIRE_CHECK(pool.revive(block, generation), "block {} was written again", block.v);
  pool_ = &pool;
  blocks_.push_back(block.v);
}

void BlockTable::begin_at(int64_t position, int32_t filler) {
  QUIRE_CHECK(blocks_.empty(), "a table of {} blocks begins at position {}", blocks_.size(), position);
  blocks_.assign(static_cast<size_t>(position / kBlockTokens), filler);
  first_ = static_cast<int32_t>(blocks_.size());
}

void BlockTable::release_before(BlockPool& pool, int64_t position, int32_t filler, bool reusable) {
  for (; held() > 0 && (int64_t{first_} + 1) * kBlockTokens <= position; ++first_) {
    const BlockId block{std::exchange(blocks_[static_cast<size_t>(first_)], filler)};
    reusable ? pool.release_first(block) : pool.release(block);
  }
}

void BlockTable::truncate(BlockPool& pool, int64_t positions) {
  // Last block first: the list hands out the oldest release first, so a sequence's beginning survives
  // longest.
  while (static_cast<int64_t>(blocks_.size()) > blocks_for(positions)) {
    if (held() > 0) pool.release(BlockId{blocks_.back()});
    blocks_.pop_back();
    first_ = std::min(first_, static_cast<int32_t>(std::ssize(blocks_)));
  }
}

}  // namespace quire
