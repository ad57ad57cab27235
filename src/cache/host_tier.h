// Memory of the host behind a prefix cache: what has to leave the device goes there before it is forgotten, and comes
// back when it is found. Pages of a KV block's size in one budget: four for the blocks of a chunk, as many as it takes
// for a recurrent state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/host_move.h"
#include "core/result.h"

namespace quire {

class HostTier {
 public:
  struct Options {
    int32_t first = 0;        // number of the first page
    int32_t pages = 0;        // how many there are
    int32_t state_pages = 0;  // that a recurrent state takes
    int32_t moves = 0;        // that one step can make each way
  };
  explicit HostTier(const Options& options);

  int32_t total() const { return options_.pages; }
  int32_t free_count() const { return options_.pages - used_; }
  int32_t used_count() const { return used_; }
  int32_t state_pages() const { return options_.state_pages; }
  // Moves that the step which is built can still make.
  int32_t outs_left() const { return options_.moves - static_cast<int32_t>(outs_.size()); }
  int32_t ins_left() const { return options_.moves - static_cast<int32_t>(ins_.size()); }

  // The first of a chain of free pages; there are as many.
  int32_t take(int32_t pages);
  void give_back(int32_t chain);

  // The pages of a chain, in its order.
  std::vector<int32_t> pages_of(int32_t chain) const;

  // With the step that is built, the pages of a chain take what lies in these blocks, or in this state slot; or give
  // it.
  void store_blocks(int32_t chain, std::span<const int32_t> blocks);
  void load_blocks(int32_t chain, std::span<const int32_t> blocks);
  void store_state(int32_t chain, int32_t slot) { add_state(chain, slot, outs_); }
  void load_state(int32_t chain, int32_t slot) { add_state(chain, slot, ins_); }
  // What the step that is built moves, in this order.
  std::span<const HostMove> outs() const { return outs_; }
  std::span<const HostMove> ins() const { return ins_; }
  void end_step();

  // Marks the pages of a chain that somebody holds; false if one is free, or somebody else's.
  bool mark(int32_t chain, int32_t pages, std::vector<bool>& seen) const;
  Status check() const;

 private:
  void add_blocks(int32_t chain, std::span<const int32_t> blocks, std::vector<HostMove>& to);
  void add_state(int32_t chain, int32_t slot, std::vector<HostMove>& to);

  Options options_;
  std::vector<int32_t> next_;  // of each page: in its chain, or among the free ones
  std::vector<bool> used_pages_;
  int32_t free_ = -1, used_ = 0;
  std::vector<HostMove> outs_, ins_;
};

}  // namespace quire
