// What of a prefix cache is on the host: who goes there, who comes back, and who is forgotten.
#include <algorithm>
#include <utility>

#include "cache/prefix_cache.h"

namespace quire {
namespace {

std::array<int32_t, kChunkBlocks> numbers(const std::array<BlockId, kChunkBlocks>& blocks) {
  std::array<int32_t, kChunkBlocks> n{};
  for (size_t i = 0; i < n.size(); ++i) n[i] = blocks[i].v;
  return n;
}

}  // namespace

int32_t PrefixCache::blocks_to_load(const Match& m) const {
  int32_t blocks = 0;
  for (int32_t i = m.node; i != kRoot; i = at(i).parent) blocks += at(i).on_device() ? 0 : kChunkBlocks;
  return blocks;
}

StateSlot PrefixCache::load(const Match& m, BlockTable& table, StateSlot own) {
  append_path(m.node, table, true);
  if (!recurrent()) return {};
  if (at(m.node).state.valid()) return at(m.node).state;  // another one that is admitted now has brought it back
  const int32_t chain = at(m.node).host_state;
  const StateSlot slot = allocate_state();
  host_->load_state(chain, slot.valid() ? slot.v : own.v);
  ++stats_.states_loaded;
  if (slot.valid()) set_state(m.node, slot, chain);
  return slot;
}

// The copy is written before the step computes anything, and steps are computed in order: who finds it from now on
// finds it written.
void PrefixCache::load_blocks(int32_t i, BlockTable& table) {
  const int64_t end = table.capacity();
  QUIRE_CHECK(table.reserve(blocks_, end, end + kChunkTokens), "no blocks for what comes back from the host");
  QUIRE_CHECK(own_blocks(i, table, end / kChunkTokens), "a fresh block has an owner");
  host_->load_blocks(at(i).host_blocks, numbers(at(i).blocks));
  ++stats_.chunks_loaded;
}

// Whether the host has the node's blocks, or takes them with the step that is built. Not those that nobody can go on
// from.
bool PrefixCache::keep_blocks_on_host(int32_t i) {
  if (host_ == nullptr || (recurrent() && use(i).states_below == 0)) return false;
  if (at(i).host_blocks >= 0) return true;
  if (host_->outs_left() < kChunkBlocks || !make_host_room(kChunkBlocks, i)) return false;
  at(i).host_blocks = host_->take(kChunkBlocks);
  host_->store_blocks(at(i).host_blocks, numbers(at(i).blocks));
  ++stats_.chunks_stored;
  return true;
}

bool PrefixCache::keep_state_on_host(int32_t i) {
  if (host_ == nullptr) return false;
  if (at(i).host_state >= 0) return true;
  const int32_t pages = host_->state_pages();
  if (host_->outs_left() < pages || !make_host_room(pages, i)) return false;
  const int32_t chain = host_->take(pages);
  host_->store_state(chain, at(i).state.v);
  set_state(i, at(i).state, chain);
  ++stats_.states_stored;
  return true;
}

// Free pages for node i, and a few more at a time, from what nobody can go on from, then from what was not used for as
// long as node i or longer. Node i stays: it has a state in it or below, or its model has none, and nodes below it go
// before it.
bool PrefixCache::make_host_room(int32_t pages, int32_t node) {
  if (host_->free_count() >= pages) return true;
  if (pages > host_->total()) return false;
  const int32_t wanted = std::min(host_->total(), pages + host_->total() / 256);
  for (const bool stateless : {true, false}) {
    if (stateless && !recurrent()) continue;
    for (int32_t i = oldest_; i >= 0 && host_->free_count() < wanted && (stateless || i != node);) {
      const int32_t next = use(i).newer;
      if (!stateless || use(i).states_below == 0) forget_on_host(i, wanted);
      i = next;
    }
  }
  return host_->free_count() >= pages;
}

// The state goes before the blocks that it needs. What the step that is built reads stays.
void PrefixCache::forget_on_host(int32_t i, int32_t wanted) {
  if (at(i).pinned == step_) return;
  if (at(i).host_state >= 0) {
    host_->give_back(at(i).host_state);
    stats_.state_evictions += !at(i).state.valid();
    set_state(i, at(i).state, -1);
  }
  if (at(i).host_blocks < 0 || host_->free_count() >= wanted) return;
  if (!at(i).on_device()) return remove(i);
  host_->give_back(std::exchange(at(i).host_blocks, -1));
}

Status PrefixCache::check_host() const {
  if (host_ == nullptr) return {};
  QUIRE_CHECKED(host_->check());
  std::vector<bool> seen(static_cast<size_t>(host_->total()));
  int64_t pages = 0, states = 0;
  for (int32_t i = oldest_; i >= 0; i = use(i).newer) {
    for (const auto& [chain, count] :
         {std::pair(at(i).host_blocks, kChunkBlocks), std::pair(at(i).host_state, host_->state_pages())}) {
      if (chain < 0) continue;
      if (!host_->mark(chain, count, seen))
        return Error{Fault::kBug, fmt::format("node {} of the prefix cache has a wrong page of the host", i)};
      pages += count;
    }
    states += at(i).host_state >= 0;
  }
  if (pages != host_->used_count() || states != stats_.host_states)
    return Error{Fault::kBug,
                 fmt::format("the prefix cache has {} pages of the host and {} states there, and counts {} "
                             "and {}",
                             pages, states, host_->used_count(), stats_.host_states)};
  return {};
}

}  // namespace quire
