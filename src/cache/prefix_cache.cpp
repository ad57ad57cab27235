#include "cache/prefix_cache.h"

#include <algorithm>
#include <bit>

namespace quire {
namespace {

std::span<const TokenId> chunk_of(std::span<const TokenId> tokens, int64_t chunk) {
  return tokens.subspan(static_cast<size_t>(chunk) * kChunkTokens, kChunkTokens);
}

}  // namespace

std::string_view prefix_miss_name(PrefixMiss m) {
  constexpr std::string_view kNames[kPrefixMisses] = {"none",     "below_block", "new",
                                                      "diverged", "evicted",     "no_checkpoint"};
  return kNames[static_cast<size_t>(m)];
}

PrefixCache::PrefixCache(BlockPool& blocks, StatePool& slots, int32_t states, HostTier* host,
                         std::vector<Windows> windows)
    : blocks_(blocks), slots_(slots), max_states_(states), host_(host) {
  const int32_t pages = host != nullptr ? host->total() : 0;
  const auto most = static_cast<size_t>((blocks.total() + pages) / kChunkBlocks);
  nodes_.resize(most + 1);
  uses_.resize(most + 1);
  for (const Windows& w : windows) windows_.push_back({w.blocks, w.tokens, std::vector<WindowBlocks>(most + 1)});
  for (size_t i = most; i > 0; --i) {
    nodes_[i].next_in_bucket = free_node_;
    free_node_ = static_cast<int32_t>(i);
  }
  buckets_.assign(std::bit_ceil(2 * most + 2), -1);
  ghosts_.resize(buckets_.size());
  beginnings_.assign(buckets_.size(), -1);
  owner_.assign(static_cast<size_t>(blocks.total()), -1);
  holder_.assign(static_cast<size_t>(slots.total()), -1);
  path_.reserve(most);
}

int32_t PrefixCache::find_hash(const Hash128& h) const {
  int32_t i = buckets_[bucket(h)];
  while (i >= 0 && !(at(i).hash == h)) i = at(i).next_in_bucket;
  return i;
}

int32_t PrefixCache::child(const Prompt& p, int32_t parent, int64_t chunk) const {
  const int32_t i = find_hash(p.hashes.at[static_cast<size_t>(chunk)]);
  // A hash says where to look, and the tokens whether it is there: those of the chunks before were compared on the way.
  if (i < 0 || at(i).parent != parent || !std::ranges::equal(at(i).tokens, chunk_of(p.tokens, chunk))) return -1;
  if (!(at(i).pictures == p.hashes.pictures_in(static_cast<size_t>(chunk)))) return -1;
  return i;
}

int32_t PrefixCache::walk(const Prompt& p, int64_t end) const {
  int32_t n = kRoot;
  for (int64_t chunk = 0; n >= 0 && chunk < end / kChunkTokens; ++chunk) n = child(p, n, chunk);
  return n;
}

// On the device.
int32_t PrefixCache::unused_blocks(const Node& n) const {
  int32_t unused = 0;
  if (!n.on_device()) return 0;
  for (const BlockId b : n.blocks) unused += blocks_.references(b) == 0;
  return unused;
}

void PrefixCache::find(const Prompt& p, Match& m) {
  if (m.last < 0 || m.generation != at(m.last).generation) m = {.last = kRoot};
  const int64_t most = longest_prefix(static_cast<int64_t>(p.tokens.size())) / kChunkTokens;
  for (int64_t chunk = at(m.last).depth; chunk < most; ++chunk) {
    const int32_t next = child(p, m.last, chunk);
    if (next < 0) break;
    m.last = next;
  }
  m.generation = at(m.last).generation;
  m.blocks = int64_t{at(m.last).depth} * kChunkTokens;
  m.node = resumable(m.last);
  m.usable = int64_t{at(m.node).depth} * kChunkTokens;
  m.moves = 0;
  if (recurrent() && m.node != kRoot && !at(m.node).state.valid()) m.moves = host_->state_pages();
  m.unused = 0;
  for (int32_t i = m.node; i != kRoot; i = at(i).parent) {
    if (!at(i).on_device()) m.moves += kChunkBlocks;
    m.unused += at(i).on_device() ? unused_blocks(at(i)) : kChunkBlocks;
  }
}

// The node nearest to the root's side of `node`, or it, that a prompt can go on from. A window block that is missing is
// missing to all nodes that look back on it: the next one to be looked at ends before it.
int32_t PrefixCache::resumable(int32_t node) const {
  for (int32_t i = node; i != kRoot; i = at(i).parent) {
    if (recurrent() && !at(i).has_state()) continue;
    int32_t broken = -1;
    for (const WindowPool& w : windows_)
      if (broken < 0) broken = broken_window(w, i);
    if (broken < 0) return i;
    i = broken;
  }
  return kRoot;
}

PrefixCache::Miss PrefixCache::explain(const Prompt& p, const Match& m) const {
  const int64_t most = longest_prefix(static_cast<int64_t>(p.tokens.size()));
  if (most == 0) return {PrefixMiss::kBelowBlock, -1};
  if (m.usable < m.blocks) return {PrefixMiss::kNoCheckpoint, -1};
  if (m.blocks == most) return {};
  const Hash128& next = p.hashes.at[static_cast<size_t>(m.blocks / kChunkTokens)];
  if (ghosts_[ghost(next)] == next) return {PrefixMiss::kEvicted, -1};
  // How far the nearest of the other ways goes along. A salt may have very many prompts.
  int64_t along = -1;
  int left = 256;
  const auto wanted = chunk_of(p.tokens, m.blocks / kChunkTokens);
  const int32_t first = m.last == kRoot ? beginnings_[beginning(p.hashes.salt)] : at(m.last).first_child;
  for (int32_t i = first; i >= 0 && left > 0; i = at(i).next_sibling) {
    if (!(at(i).salt == p.hashes.salt)) continue;
    if (!(at(i).pictures == p.hashes.pictures_in(static_cast<size_t>(m.blocks / kChunkTokens)))) continue;
    along = std::max<int64_t>(along, std::ranges::mismatch(at(i).tokens, wanted).in1 - at(i).tokens.begin());
    --left;
  }
  if (along < 0 || (m.last == kRoot && along == 0)) return {PrefixMiss::kNew, -1};
  return {PrefixMiss::kDiverged, m.blocks + along};
}

StateSlot PrefixCache::take(const Match& m, std::span<BlockTable> tables) {
  append_path(m.node, tables[kKvPool], false);
  for (size_t w = 0; w < windows_.size(); ++w) take_windows(windows_[w], m.node, tables[1 + w]);
  for (int32_t i = m.node; i != kRoot; i = at(i).parent) at(i).pinned = step_;
  touch_path(m.node);
  if (has_windows()) note(m.node);
  if (!recurrent()) return {};
  at(m.node).taken = step_;
  return at(m.node).state;
}

// The blocks of a path to a table that has the first of them; up to the first that is on the host alone, or with it.
void PrefixCache::append_path(int32_t node, BlockTable& table, bool load) {
  path_.clear();
  const auto has = static_cast<int32_t>(table.blocks().size()) / kChunkBlocks;
  for (int32_t i = node; at(i).depth > has; i = at(i).parent) path_.push_back(i);
  for (auto i = path_.rbegin(); i != path_.rend(); ++i) {
    if (!at(*i).on_device()) {
      if (!load) return;
      load_blocks(*i, table);
      continue;
    }
    for (int b = 0; b < kChunkBlocks; ++b) table.append_shared(blocks_, at(*i).blocks[b], at(*i).generations[b]);
  }
}

void PrefixCache::publish(const Prompt& p, int64_t end, std::span<const BlockTable> tables) {
  const BlockTable& table = tables[kKvPool];
  int32_t n = kRoot;
  for (int64_t chunk = 0; chunk < end / kChunkTokens; ++chunk) {
    int32_t next = child(p, n, chunk);
    if (next < 0) next = add(p, n, chunk, &table);
    if (next < 0) break;
    if (!at(next).on_device()) own_blocks(next, table, chunk);  // computed again, for want of a state
    for (size_t w = 0; w < windows_.size(); ++w) own_windows(windows_[w], next, tables[1 + w], chunk);
    n = next;
  }
  touch_path(n);
}

int32_t PrefixCache::add(const Prompt& p, int32_t parent, int64_t chunk, const BlockTable* table) {
  const Hash128& h = p.hashes.at[static_cast<size_t>(chunk)];
  if (free_node_ < 0 || find_hash(h) >= 0) return -1;
  const int32_t i = free_node_;
  Node& n = at(i);
  if (table != nullptr && !own_blocks(i, *table, chunk)) return -1;
  if (table == nullptr) n.host_blocks = host_->take(kChunkBlocks);
  free_node_ = n.next_in_bucket;
  n.hash = h;
  n.salt = p.hashes.salt;
  n.pictures = p.hashes.pictures_in(static_cast<size_t>(chunk));
  std::ranges::copy(chunk_of(p.tokens, chunk), n.tokens.begin());
  n.used = true;
  n.parent = parent;
  n.depth = at(parent).depth + 1;
  n.next_sibling = std::exchange(first_child(parent, n.salt), i);
  if (n.next_sibling >= 0) at(n.next_sibling).prev_sibling = i;
  n.next_in_bucket = std::exchange(buckets_[bucket(h)], i);
  append_use(i);
  ++stats_.nodes;
  if (!needs_more_than_blocks()) note(i);
  return i;
}

// The table's blocks of a chunk become the node's; not if another node has one of them.
bool PrefixCache::own_blocks(int32_t i, const BlockTable& table, int64_t chunk) {
  const auto first = static_cast<size_t>(chunk) * kChunkBlocks;
  if (table.blocks().size() < first + kChunkBlocks) return false;
  for (size_t b = first; b < first + kChunkBlocks; ++b)
    if (owner_[static_cast<size_t>(table.blocks()[b])] >= 0) return false;
  Node& n = at(i);
  for (int b = 0; b < kChunkBlocks; ++b) {
    const BlockId block{table.blocks()[first + static_cast<size_t>(b)]};
    n.blocks[b] = block;
    n.generations[b] = blocks_.generation(block);
    owner_[static_cast<size_t>(block.v)] = i;
    blocks_.set_cached(block, true);
  }
  return true;
}

void PrefixCache::disown_blocks(Node& n) {
  if (!n.on_device()) return;
  for (BlockId& b : n.blocks) {
    owner_[static_cast<size_t>(b.v)] = -1;
    blocks_.set_cached(b, false);
    b = {};
  }
}

void PrefixCache::unlink_use(int32_t i) {
  Use& u = use(i);
  (u.older < 0 ? oldest_ : use(u.older).newer) = u.newer;
  (u.newer < 0 ? newest_ : use(u.newer).older) = u.older;
  u.older = u.newer = -1;
}

void PrefixCache::append_use(int32_t i) {
  use(i).older = newest_;
  (newest_ < 0 ? oldest_ : use(newest_).newer) = i;
  newest_ = i;
  at(i).touched = ++touches_;
}

// From the node up, so that an ancestor is newer than what hangs below it: the oldest node is always a leaf.
void PrefixCache::touch_path(int32_t node) {
  for (int32_t i = node; i != kRoot; i = at(i).parent) {
    unlink_use(i);
    append_use(i);
  }
}

bool PrefixCache::has_state(const Prompt& p, int64_t end) const {
  const int32_t i = find_hash(p.hashes.at[static_cast<size_t>(end / kChunkTokens - 1)]);
  return i >= 0 && at(i).has_state();
}

// Where a node's state is from now on: in a slot, on the host, both or nowhere.
void PrefixCache::set_state(int32_t i, StateSlot slot, int32_t chain) {
  const int before = at(i).has_state();
  stats_.host_states += (chain >= 0) - (at(i).host_state >= 0);
  if (at(i).state.valid()) holder_[static_cast<size_t>(at(i).state.v)] = -1;
  if (slot.valid()) holder_[static_cast<size_t>(slot.v)] = i;
  at(i).state = slot;
  at(i).host_state = chain;
  const int change = at(i).has_state() - before;
  for (int32_t n = i; change != 0 && n >= 0; n = at(n).parent) use(n).states_below += change;
  if (change != 0) note(i);
}

StateSlot PrefixCache::allocate_state() {
  if (states_held_ < max_states_)
    if (const StateSlot slot = slots_.allocate(); slot.valid()) {
      ++states_held_;
      return slot;
    }
  int32_t oldest = -1;
  for (const int32_t i : holder_)
    if (i >= 0 && at(i).taken != step_ && (oldest < 0 || at(i).touched < at(oldest).touched)) oldest = i;
  if (oldest < 0) return {};
  const StateSlot slot = at(oldest).state;
  stats_.state_evictions += !keep_state_on_host(oldest);
  set_state(oldest, {}, at(oldest).host_state);
  return slot;
}

void PrefixCache::publish_state(const Prompt& p, int64_t end, StateSlot slot) {
  const int32_t i = walk(p, end);
  if (i <= kRoot || at(i).state.valid()) return drop_state(slot);
  set_state(i, slot, at(i).host_state);
}

void PrefixCache::drop_state(StateSlot slot) {
  slots_.release(slot);
  --states_held_;
}

void PrefixCache::remove_leaf(int32_t i) {
  Node& n = at(i);
  if (n.state.valid()) drop_state(n.state);
  if (n.host_state >= 0) host_->give_back(n.host_state);
  if (n.host_blocks >= 0) host_->give_back(n.host_blocks);
  set_state(i, {}, -1);
  disown_blocks(n);
  disown_windows(i);
  set_resumes(i, false);
  (n.prev_sibling < 0 ? first_child(n.parent, n.salt) : at(n.prev_sibling).next_sibling) = n.next_sibling;
  if (n.next_sibling >= 0) at(n.next_sibling).prev_sibling = n.prev_sibling;
  int32_t* link = &buckets_[bucket(n.hash)];
  while (*link != i) link = &at(*link).next_in_bucket;
  *link = n.next_in_bucket;
  unlink_use(i);
  ghosts_[ghost(n.hash)] = n.hash;
  n = Node{.generation = n.generation + 1};
  use(i) = {};
  n.next_in_bucket = std::exchange(free_node_, i);
  --stats_.nodes;
  ++stats_.evictions;
}

void PrefixCache::remove(int32_t top) {
  for (int32_t i = top;;) {
    while (at(i).first_child >= 0) i = at(i).first_child;
    const int32_t parent = at(i).parent;
    remove_leaf(i);
    if (i == top) return;
    i = parent;
  }
}

void PrefixCache::make_room(int32_t wanted) {
  // First what nobody can go on from because no state is left in it or below; then whatever was not used for longest,
  // which the host may take.
  for (const bool stateless : {true, false}) {
    if (stateless && !recurrent()) continue;
    for (int32_t i = oldest_; i >= 0 && blocks_.free_count() < wanted;) {
      ++stats_.looked_at;
      const bool goes = (!stateless || use(i).states_below == 0) && unused_blocks(at(i)) > 0 && at(i).pinned != step_,
                 kept = goes && keep_blocks_on_host(i);
      const int32_t next = use(i).newer;  // what goes with node i is older
      if (kept)
        disown_blocks(at(i));
      else if (goes)
        remove(i);
      i = next;
    }
  }
}

void PrefixCache::end_step() {
  ++step_;
  if (host_ != nullptr) host_->end_step();
}

std::vector<int32_t> PrefixCache::by_use() const {
  std::vector<int32_t> all;
  all.reserve(static_cast<size_t>(stats_.nodes));
  for (int32_t i = newest_; i >= 0; i = use(i).older) all.push_back(i);
  return all;
}

PrefixCache::Chunk PrefixCache::chunk(int32_t node) const {
  const Node& n = at(node);
  Chunk c{.parent = n.parent,
          .salt = n.salt,
          .pictures = n.pictures,
          .tokens = n.tokens,
          .parts = kBlocksPart,
          .pools = std::vector<Chunk::Units>(static_cast<size_t>(pools())),
          .state_below = use(node).states_below > n.has_state(),
          .resumes = resumable(node) == node,
          .has_state = n.has_state()};
  const auto pages = [&](int32_t chain) { return chain >= 0 ? host_->pages_of(chain) : std::vector<int32_t>(); };
  if (n.on_device())
    for (const BlockId b : n.blocks) c.pools[kKvPool].units.push_back(b.v);
  c.pools[kKvPool].pages = pages(n.host_blocks);
  for (int w = 0; w < std::ssize(windows_); ++w) {
    const WindowPool& of = windows_[static_cast<size_t>(w)];
    std::vector<int32_t>& units = c.pools[static_cast<size_t>(1 + w)].units;
    for (int b = 0; b < kChunkBlocks; ++b) {
      const BlockId block = of.of[static_cast<size_t>(node)].blocks[b];
      const bool kept = of.has(node, b) && of.blocks->is_cached(block);
      units.push_back(kept ? block.v : -1);
      if (kept) c.parts |= part(1 + w, b);
    }
    if (of_pool(c.parts, 1 + w) == 0) units.clear();
  }
  if (!n.has_state()) return c;
  c.parts |= part(state_pool());
  if (n.state.valid()) c.pools.back().units.push_back(n.state.v);
  c.pools.back().pages = pages(n.host_state);
  return c;
}

int32_t PrefixCache::restore(const KeyedHash& hash, int32_t parent, const Hash128& salt, const Hash128& pictures,
                             std::span<const TokenId> tokens, Parts parts) {
  const bool on_device = blocks_.free_count() >= kChunkBlocks;
  if (!on_device && (host_ == nullptr || host_->free_count() < kChunkBlocks)) return -1;
  PrefixHashes hashes{.salt = salt, .pictures = {pictures}};
  hashes.at.push_back(chained(hash, parent == kRoot ? salt : at(parent).hash, tokens, pictures));
  BlockTable table;  // gives its blocks back in the end: the pool keeps them for what they hold
  if (on_device) table.reserve(blocks_, 0, kChunkTokens);
  const int32_t i = add({tokens, hashes}, parent, 0, on_device ? &table : nullptr);
  if (i < 0) return -1;
  unlink_use(i);
  at(i).touched = oldest_ < 0 ? touches_ : at(oldest_).touched - 1;
  use(i).newer = oldest_;
  (oldest_ < 0 ? newest_ : use(oldest_).older) = i;
  oldest_ = i;
  for (int w = 0; w < std::ssize(windows_); ++w)
    restore_windows(windows_[static_cast<size_t>(w)], i, of_pool(parts, 1 + w));
  if (recurrent() && of_pool(parts, state_pool()) != 0) restore_state(i);
  note(i);
  return i;
}

// Gives a node room for its state.
void PrefixCache::restore_state(int32_t i) {
  if (const StateSlot slot = states_held_ < max_states_ ? slots_.allocate() : StateSlot{}; slot.valid()) {
    ++states_held_;
    set_state(i, slot, -1);
  } else if (host_ != nullptr && host_->free_count() >= host_->state_pages()) {
    set_state(i, {}, host_->take(host_->state_pages()));
  }
}

void PrefixCache::clear() {
  for (const int32_t& first : beginnings_)
    while (first >= 0) remove(first);
}

Status PrefixCache::check_node(int32_t i) const {
  const Node& n = at(i);
  const auto wrong = [&](std::string_view what) {
    return Error{Fault::kBug, fmt::format("node {} of the prefix cache {}", i, what)};
  };
  if (!n.used || n.parent < 0 || (n.parent != kRoot && !at(n.parent).used)) return wrong("hangs from nothing");
  if (n.depth != at(n.parent).depth + 1) return wrong("has a wrong depth");
  if (find_hash(n.hash) != i) return wrong("is not found by its hash");
  int32_t below = n.has_state();
  for (int32_t c = n.first_child; c >= 0; c = at(c).next_sibling) {
    if (at(c).parent != i) return wrong("has another's child");
    below += use(c).states_below;
  }
  if (below != use(i).states_below) return wrong("miscounts the states below it");
  if (!n.on_device() && n.host_blocks < 0) return wrong("has no blocks");
  for (int b = 0; b < kChunkBlocks && n.on_device(); ++b) {
    if (owner_[static_cast<size_t>(n.blocks[b].v)] != i) return wrong("has another's block");
    if (blocks_.generation(n.blocks[b]) != n.generations[b]) return wrong("has a block that was written again");
  }
  return {};
}

Status PrefixCache::check() const {
  int32_t nodes = 0, on_device = 0, states = 0, with_state = 0, last = -1, begin = 0;
  for (const int32_t first : beginnings_)
    for (int32_t i = first; i >= 0; i = at(i).next_sibling, ++begin)
      if (at(i).parent != kRoot || beginnings_[beginning(at(i).salt)] != first)
        return Error{Fault::kBug, fmt::format("node {} is listed as another salt's beginning", i)};
  for (int32_t i = oldest_; i >= 0; last = i, i = use(i).newer, ++nodes) {
    QUIRE_CHECKED(check_node(i));
    begin -= at(i).parent == kRoot;
    if (use(i).older != last || (last >= 0 && at(i).touched <= at(last).touched))
      return Error{Fault::kBug, fmt::format("node {} has a broken link of use", i)};
    if (at(i).state.valid() && holder_[static_cast<size_t>(at(i).state.v)] != i)
      return Error{Fault::kBug, fmt::format("node {} has another's state", i)};
    states += at(i).state.valid();
    with_state += at(i).has_state();
    on_device += at(i).on_device();
  }
  const auto owned = static_cast<int32_t>(std::ranges::count_if(owner_, [](int32_t o) { return o >= 0; }));
  const auto held = static_cast<int32_t>(std::ranges::count_if(holder_, [](int32_t o) { return o >= 0; }));
  if (begin != 0) return Error{Fault::kBug, fmt::format("{} beginnings too many are listed", begin)};
  if (nodes != stats_.nodes || last != newest_ || held != states || owned != on_device * kChunkBlocks ||
      states > states_held_ || use(kRoot).states_below != with_state)
    return Error{Fault::kBug,
                 fmt::format("the prefix cache has {} nodes with {} blocks and {} states, and counts {}, {} and {}",
                             nodes, owned, states, stats_.nodes, on_device * kChunkBlocks, states_held_)};
  for (const WindowPool& w : windows_) QUIRE_CHECKED(check_windows(w));
  QUIRE_CHECKED(check_events());
  return check_host();
}

}  // namespace quire
