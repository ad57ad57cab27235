// Book-keeping of the KV blocks: who owns which of a fixed number of blocks. The memory itself is in
// storage.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/id.h"
#include "core/result.h"

namespace quire {

// Each block is in exactly one of three states:
//   used    referenced by one or more block tables
//   cached  unreferenced, its content worth finding again (set_cached); taken only when no free block is left
//   free    unreferenced; its content stays as it was until the block is handed out again
// free + cached + used = total always; check() proves it. Free and cached blocks are handed out least
// recently released first. All operations are O(1). Not thread-safe: the engine thread owns it.
class BlockPool {
 public:
  // Fresh blocks are handed out in ascending order, or in a random one if shuffle_seed is not 0 (tests).
  explicit BlockPool(int32_t total, uint64_t shuffle_seed = 0);

  int32_t total() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t free_count() const { return free_.count; }
  int32_t cached_count() const { return cached_.count; }
  int32_t used_count() const { return used_; }
  // How often allocate() handed out a cached block.
  int64_t cached_handed_out() const { return cached_handed_out_; }
  // Blocks that allocate() could hand out now.
  int32_t available() const { return free_.count + cached_.count; }

  // A block with one reference, or an invalid id when none is available. Its generation is new: whoever
  // remembered the old content must not use it.
  BlockId allocate();
  void retain(BlockId b);
  // Drops a reference. The last one makes the block free, or cached when it was marked so.
  void release(BlockId b);
  // The same, but of all free, or all cached blocks it is handed out first: its content is worth least.
  void release_first(BlockId b);
  // Marks whether the content of a used or free block is findable (the prefix cache's decision).
  void set_cached(BlockId b, bool cached);

  // Takes an unreferenced block back for its content: true if it still holds `generation`.
  bool revive(BlockId b, uint32_t generation);

  // Whether a block, if it is valid, still holds the content of `generation`: used, cached or free.
  bool holds(BlockId b, uint32_t generation) const { return b.valid() && at(b).generation == generation; }
  bool is_cached(BlockId b) const { return at(b).cached; }  // as set_cached() left it
  int32_t references(BlockId b) const { return at(b).refs; }
  uint32_t generation(BlockId b) const { return at(b).generation; }

  // Walks every list and count. An error describes the first contradiction.
  Status check() const;

 private:
  struct Block {
    int32_t refs = 0;
    uint32_t generation = 0;
    bool cached = false;
    int32_t prev = -1, next = -1;  // neighbours in the free or cached list
  };
  struct List {
    int32_t head = -1, tail = -1, count = 0;
  };
  const Block& at(BlockId b) const;
  Block& at(BlockId b) { return const_cast<Block&>(std::as_const(*this).at(b)); }
  List& list_of(const Block& b) { return b.cached ? cached_ : free_; }
  void push_back(List& l, int32_t i);
  void push_front(List& l, int32_t i);
  void remove(List& l, int32_t i);
  Status check_list(const List& l, bool cached, std::vector<bool>& seen) const;

  std::vector<Block> blocks_;
  List free_, cached_;
  int32_t used_ = 0;
  int64_t cached_handed_out_ = 0;
};

// Fixed slots of recurrent state. A slot has one owner; there is no sharing, because a state is written at
// every step.
class StatePool {
 public:
  explicit StatePool(int32_t total);
  int32_t total() const { return static_cast<int32_t>(used_.size()); }
  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
  int32_t used_count() const { return total() - free_count(); }
  StateSlot allocate();  // invalid when none is free
  void release(StateSlot s);
  Status check() const;

 private:
  std::vector<int32_t> free_;
  std::vector<bool> used_;
};

}  // namespace quire
