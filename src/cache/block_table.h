// The blocks of one sequence, in the order of its positions.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "ops/op.h"

namespace quire {

// Positions [16 i, 16 i + 16) lie in block i of the table. Blocks that the prefix cache gave are shared and never
// written again; all that follow are the sequence's own. Owns its references: what it still holds at its end goes back
// to the pool, which must outlive it.
//
// Of layers that attend to a window the table holds the last blocks alone: entries before those are of positions that
// no step reads any more, and name the block of zeros (window_filler).
class BlockTable {
 public:
  BlockTable() = default;
  ~BlockTable() {
    if (pool_ != nullptr) clear(*pool_);
  }
  BlockTable(BlockTable&& o) noexcept { *this = std::move(o); }
  BlockTable& operator=(BlockTable&& o) noexcept {
    std::swap(blocks_, o.blocks_);
    std::swap(pool_, o.pool_);
    std::swap(first_, o.first_);
    return *this;
  }

  // Makes room for so many blocks, so that reserve() allocates nothing.
  void reserve_memory(int32_t blocks) { blocks_.reserve(static_cast<size_t>(blocks)); }

  const int32_t* data() const { return blocks_.data(); }
  std::span<const int32_t> blocks() const { return blocks_; }
  // Positions that the table covers.
  int64_t capacity() const { return static_cast<int64_t>(blocks_.size()) * kBlockTokens; }

  // The first entry that is a block of the table's, and how many there are.
  int32_t first() const { return first_; }
  int32_t held() const { return static_cast<int32_t>(std::ssize(blocks_)) - first_; }

  // Blocks that reserve() would take from the pool.
  int32_t blocks_needed(int64_t end) const;

  // Makes positions [begin, end) writable: adds blocks up to `end`. False, and no change, when the pool has too few
  // blocks. A shared block in the range is a mistake of ours, and fatal: others read it.
  bool reserve(BlockPool& pool, int64_t begin, int64_t end);

  // Appends a block whose content is kept under `generation`, with a reference of its own.
  void append_shared(BlockPool& pool, BlockId block, uint32_t generation);

  // Begins an empty table, whose positions before `position` (rounded down to whole blocks) nobody reads.
  void begin_at(int64_t position, int32_t filler);
  // Gives back the blocks that lie wholly before `position`. `reusable`: nobody wants their content again.
  void release_before(BlockPool& pool, int64_t position, int32_t filler, bool reusable);

  // Gives back the blocks beyond `positions` (rounded up to whole blocks).
  void truncate(BlockPool& pool, int64_t positions);
  void clear(BlockPool& pool) { truncate(pool, 0); }

 private:
  std::vector<int32_t> blocks_;
  BlockPool* pool_ = nullptr;  // whose references it holds
  int32_t first_ = 0;
};

}  // namespace quire
