// What of a prefix cache belongs to layers that attend to a window and have blocks of their own: who has which, and
// what of it a prompt that goes on needs.
#include <bit>

#include "cache/prefix_cache.h"

namespace quire {

template <class Fn>
void PrefixCache::each_window(const WindowPool& w, int32_t node, Fn&& fn) const {
  const int64_t first = first_window(w, node);
  for (int32_t i = node; i != kRoot && int64_t{at(i).depth} * kChunkBlocks > first; i = at(i).parent)
    for (int b = kChunkBlocks; b-- > 0 && int64_t{at(i).depth - 1} * kChunkBlocks + b >= first;)
      if (w.has(i, b)) fn(w.of[static_cast<size_t>(i)].blocks[b]);
}

int32_t PrefixCache::broken_window(const WindowPool& w, int32_t node) const {
  const int64_t first = first_window(w, node);
  for (int32_t i = node; i != kRoot && int64_t{at(i).depth} * kChunkBlocks > first; i = at(i).parent)
    for (int b = kChunkBlocks; b-- > 0 && int64_t{at(i).depth - 1} * kChunkBlocks + b >= first;)
      if (!w.has(i, b)) return i;
  return -1;
}

// What the table has of a chunk becomes the node's, where it has nothing.
void PrefixCache::own_windows(WindowPool& w, int32_t i, const BlockTable& table, int64_t chunk) {
  WindowBlocks& own = w.of[static_cast<size_t>(i)];
  for (int b = 0; b < kChunkBlocks; ++b) {
    const int64_t number = chunk * kChunkBlocks + b;
    if (number < table.first() || number >= std::ssize(table.blocks()) || w.has(i, b)) continue;
    own.blocks[b] = BlockId{table.blocks()[static_cast<size_t>(number)]};
    own.generations[b] = w.blocks->generation(own.blocks[b]);
  }
}

void PrefixCache::disown_windows(int32_t i) {
  for (WindowPool& w : windows_) {
    WindowBlocks& own = w.of[static_cast<size_t>(i)];
    for (int b = 0; b < kChunkBlocks; ++b)
      if (w.has(i, b)) w.blocks->set_cached(own.blocks[b], false);
    own = {};
  }
}

void PrefixCache::keep_windows(const Prompt& p, int64_t end) {
  const int32_t node = has_windows() ? walk(p, end) : kRoot;
  if (node <= kRoot) return;
  for (const WindowPool& w : windows_) each_window(w, node, [&](BlockId b) { w.blocks->set_cached(b, true); });
  note(node);
}

void PrefixCache::take_windows(WindowPool& w, int32_t node, BlockTable& table) {
  path_.clear();
  each_window(w, node, [&](BlockId b) {
    w.blocks->set_cached(b, true);
    path_.push_back(b.v);
  });
  table.begin_at(first_window(w, node) * kBlockTokens, window_filler(w.blocks->total()));
  for (auto b = path_.rbegin(); b != path_.rend(); ++b)
    table.append_shared(*w.blocks, BlockId{*b}, w.blocks->generation(BlockId{*b}));
  QUIRE_CHECK(table.capacity() == int64_t{at(node).depth} * kChunkTokens,
              "a prefix of {} chunks, of which {} window blocks are there", at(node).depth, table.held());
}

// Blocks of windows that are not kept are as good as gone: the next sequence takes them.
bool PrefixCache::may_resume(int32_t i) const {
  if (recurrent() && !at(i).has_state()) return false;
  for (const WindowPool& w : windows_) {
    if (broken_window(w, i) >= 0) return false;
    bool kept = true;
    each_window(w, i, [&](BlockId b) { kept = kept && w.blocks->is_cached(b); });
    if (!kept) return false;
  }
  return true;
}

// Used less recently than all that was restored before.
void PrefixCache::restore_windows(WindowPool& w, int32_t i, Parts which) {
  if (w.blocks->free_count() < std::popcount(which)) return;
  WindowBlocks& own = w.of[static_cast<size_t>(i)];
  for (int b = 0; b < kChunkBlocks; ++b) {
    if ((which >> b & 1) == 0) continue;
    own.blocks[b] = w.blocks->allocate();
    own.generations[b] = w.blocks->generation(own.blocks[b]);
    w.blocks->set_cached(own.blocks[b], true);
    w.blocks->release_first(own.blocks[b]);
  }
}

Status PrefixCache::check_windows(const WindowPool& w) const {
  std::vector<bool> seen(static_cast<size_t>(w.blocks->total()));
  int32_t cached = 0;
  for (int32_t i = oldest_; i >= 0; i = use(i).newer) {
    for (int b = 0; b < kChunkBlocks; ++b) {
      if (!w.has(i, b)) continue;
      const BlockId block = w.of[static_cast<size_t>(i)].blocks[b];
      if (seen[static_cast<size_t>(block.v)])
        return Error{Fault::kBug, fmt::format("window block {} of node {} is another node's as well", block.v, i)};
      seen[static_cast<size_t>(block.v)] = true;
      cached += w.blocks->is_cached(block) && w.blocks->references(block) == 0;
    }
  }
  if (cached == w.blocks->cached_count()) return {};
  return Error{Fault::kBug, fmt::format("the prefix cache keeps {} unused window blocks, of {} that are cached", cached,
                                        w.blocks->cached_count())};
}

}  // namespace quire
