// What of a prefix cache belongs to layers that attend to a window and have blocks of their own: who has which, and
// what of it a prompt that goes on needs.
#include <bit>

#include "cache/prefix_cache.h"

namespace quire {

template <class Fn>
void PrefixCache::each_window(int32_t node, Fn&& fn) const {
  const int64_t first = first_window(node);
  for (int32_t i = node; i != kRoot && int64_t{at(i).depth} * kChunkBlocks > first; i = at(i).parent)
    for (int b = kChunkBlocks; b-- > 0 && int64_t{at(i).depth - 1} * kChunkBlocks + b >= first;)
      if (has_window(i, b)) fn(window_blocks_[static_cast<size_t>(i)].blocks[b]);
}

// What the table has of a chunk becomes the node's, where it has nothing.
void PrefixCache::own_windows(int32_t i, const BlockTable& windows, int64_t chunk) {
  WindowBlocks& w = window_blocks_[static_cast<size_t>(i)];
  for (int b = 0; b < kChunkBlocks; ++b) {
    const int64_t number = chunk * kChunkBlocks + b;
    if (number < windows.first() || number >= std::ssize(windows.blocks()) || has_window(i, b)) continue;
    w.blocks[b] = BlockId{windows.blocks()[static_cast<size_t>(number)]};
    w.generations[b] = windows_.blocks->generation(w.blocks[b]);
  }
}

void PrefixCache::disown_windows(int32_t i) {
  if (!has_windows()) return;
  for (int b = 0; b < kChunkBlocks; ++b)
    if (has_window(i, b)) windows_.blocks->set_cached(window_blocks_[static_cast<size_t>(i)].blocks[b], false);
  window_blocks_[static_cast<size_t>(i)] = {};
}

void PrefixCache::keep_windows(const Prompt& p, int64_t end) {
  const int32_t node = has_windows() ? walk(p, end) : kRoot;
  if (node > kRoot) each_window(node, [&](BlockId b) { windows_.blocks->set_cached(b, true); });
}

void PrefixCache::take_windows(int32_t node, BlockTable& table) {
  path_.clear();
  each_window(node, [&](BlockId b) {
    windows_.blocks->set_cached(b, true);
    path_.push_back(b.v);
  });
  table.begin_at(first_window(node) * kBlockTokens, window_filler(*windows_.blocks));
  for (auto b = path_.rbegin(); b != path_.rend(); ++b)
    table.append_shared(*windows_.blocks, BlockId{*b}, windows_.blocks->generation(BlockId{*b}));
  QUIRE_CHECK(table.capacity() == int64_t{at(node).depth} * kChunkTokens,
              "a prefix of {} chunks, of which {} window blocks are there", at(node).depth, table.held());
}

// Used less recently than all that was restored before.
void PrefixCache::restore_windows(int32_t i, uint32_t which) {
  BlockPool& pool = *windows_.blocks;
  if (pool.free_count() < std::popcount(which)) return;
  WindowBlocks& w = window_blocks_[static_cast<size_t>(i)];
  for (int b = 0; b < kChunkBlocks; ++b) {
    if ((which >> b & 1) == 0) continue;
    w.blocks[b] = pool.allocate();
    w.generations[b] = pool.generation(w.blocks[b]);
    pool.set_cached(w.blocks[b], true);
    pool.release_first(w.blocks[b]);
  }
}

Status PrefixCache::check_windows() const {
  if (!has_windows()) return {};
  std::vector<bool> seen(static_cast<size_t>(windows_.blocks->total()));
  int32_t cached = 0;
  for (int32_t i = oldest_; i >= 0; i = use(i).newer) {
    for (int b = 0; b < kChunkBlocks; ++b) {
      if (!has_window(i, b)) continue;
      const BlockId block = window_blocks_[static_cast<size_t>(i)].blocks[b];
      if (seen[static_cast<size_t>(block.v)])
        return Error{Fault::kBug, fmt::format("window block {} of node {} is another node's as well", block.v, i)};
      seen[static_cast<size_t>(block.v)] = true;
      cached += windows_.blocks->is_cached(block) && windows_.blocks->references(block) == 0;
    }
  }
  if (cached == windows_.blocks->cached_count()) return {};
  return Error{Fault::kBug, fmt::format("the prefix cache keeps {} unused window blocks, of {} that are cached", cached,
                                        windows_.blocks->cached_count())};
}

}  // namespace quire
