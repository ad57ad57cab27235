#include "engine/cache_manager.h"

#include <algorithm>

namespace quire {

CacheManager::CacheManager(const Backend& backend, const EnginePlan& plan, const ModelConfig& model)
    : pools_(backend.pools()),
      recurrent_(state_pool(pools_) >= 0),
      host_blocks_(backend.host_pages().swap),
      states_(state_count(pools_, backend.units())) {
  for (const CachePoolSpec& pool : pools_) needs_.push_back(plan.window_needs(pool));
  const int block_pools = quire::block_pools(pools_);
  for (int i = 0; i < block_pools; ++i)
    blocks_.emplace_back(backend.units()[static_cast<size_t>(i)], plan.shuffle_blocks);
  make_prefix_cache(backend.host_pages(), plan, model);
  const StepCapacity& c = backend.layout().capacity();
  loading_.reserve(static_cast<size_t>(c.batch_slots));
  moves_.outs.reserve(static_cast<size_t>(c.swaps));
  moves_.ins.reserve(static_cast<size_t>(c.swaps));
  moves_.state_copies.reserve(static_cast<size_t>(c.slot_copies));
}

void CacheManager::make_prefix_cache(const HostPages& pages, const EnginePlan& plan, const ModelConfig& model) {
  // A model with recurrent layers can go on only from saved states.
  const int32_t states = recurrent_ ? states_.total() - plan.max_sequences : -1;
  if (!plan.prefix_cache || states == 0) return;
  if (pages.cache >= kChunkBlocks)
    host_tier_.emplace(HostTier::Options{.first = pages.swap,
                                         .pages = pages.cache,
                                         .state_pages = recurrent_ ? plan.state_pages(model) : 0,
                                         .moves = plan.cache_moves(model)});
  std::vector<PrefixCache::Windows> windows;
  for (size_t i = kKvPool + 1; i < blocks_.size(); ++i) windows.push_back({&blocks_[i], pools_[i].window});
  prefix_ = std::make_unique<PrefixCache>(blocks_[kKvPool], states_, states, host_tier_ ? &*host_tier_ : nullptr,
                                          std::move(windows));
}

void CacheManager::prepare(SequenceMemory& memory, int32_t most_blocks) const {
  memory.tables.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    memory.tables[i].reserve_memory(most_blocks);
    memory.most.push_back(pools_[i].is_window() ? std::min(most_blocks, needs_[i].sequence) : most_blocks);
  }
  if (host_blocks_.total() > 0) memory.swapped.reserve(static_cast<size_t>(most_blocks));
}

WindowCounts CacheManager::set_aside(const Sequence& s) {
  WindowCounts counts{};
  std::copy(s.memory.most.begin() + 1, s.memory.most.end(), counts.begin());
  return counts;
}

WindowCounts CacheManager::free_windows(std::span<const ScheduledSequence> running) const {
  WindowCounts free{};
  for (size_t i = kKvPool + 1; i < blocks_.size(); ++i) {
    int32_t& left = free[i - 1];
    left = blocks_[i].total() - needs_[i].steps;
    for (const ScheduledSequence& s : running) left -= s.windows[i - 1];
  }
  return free;
}

PoolUses CacheManager::uses() const {
  PoolUses uses;
  for (size_t i = 0; i < blocks_.size(); ++i)
    uses.add({.name = pools_[i].name,
              .free = blocks_[i].free_count(),
              .cached = blocks_[i].cached_count(),
              .used = blocks_[i].used_count()});
  if (!recurrent_) return uses;
  const int32_t saved = prefix_ ? prefix_->states_held() : 0;
  uses.add({.name = pools_[static_cast<size_t>(state_pool(pools_))].name,
            .free = states_.free_count(),
            .cached = saved,
            .used = states_.used_count() - saved});
  return uses;
}

CacheManager::HostUse CacheManager::host_use() const {
  if (prefix_ == nullptr || prefix_->host() == nullptr) return {};
  const int64_t chunk = kChunkBlocks * pools_[kKvPool].bytes, state = state_bytes(pools_);
  const PrefixCache::Stats s = prefix_->stats();
  return {.pages_used = prefix_->host()->used_count(),
          .pages_total = prefix_->host()->total(),
          .states = s.host_states,
          .bytes_stored = s.chunks_stored * chunk + s.states_stored * state,
          .bytes_loaded = s.chunks_loaded * chunk + s.states_loaded * state,
          .tokens_loaded = s.chunks_loaded * kChunkTokens};
}

void CacheManager::find_prefix(Sequence& s) {
  if (prefix_ && s.prefix.reads) prefix_->find(s.prompt(), s.prefix.match);
}

int64_t CacheManager::next_cut(const Sequence& s) const {
  return s.planned < s.prompt_tokens() ? cut_after(s, s.planned) : 0;
}

int64_t CacheManager::first_cut(const Sequence& s) const {
  const PrefixCache::Match& match = s.prefix.match;
  const int64_t at = cut_after(s, match.usable), leaves = match.blocks;
  const bool earlier = prefix_ && recurrent_ && leaves > match.usable && (at == 0 || leaves < at);
  return earlier ? leaves : at;
}

int64_t CacheManager::cut_after(const Sequence& s, int64_t position) const {
  if (!prefix_ || !recurrent_) return 0;
  int64_t at = s.prefix.checkpoints.next(position);
  while (at > 0 && prefix_->has_state(s.prompt(), at)) at = s.prefix.checkpoints.next(at);
  return at;
}

bool CacheManager::is_adding_prefixes(const Sequence& s) const {
  const PrefixUse& p = s.prefix;
  return prefix_ && (p.published < longest_prefix(s.prompt_tokens()) || p.unsaved > 0 || p.saving > 0);
}

int32_t CacheManager::exclusive_blocks(const Sequence& s) const {
  int32_t n = 0;
  const std::span<const int32_t> blocks = s.memory.kv().blocks();
  for (auto b = blocks.rbegin(); b != blocks.rend(); ++b, ++n)
    if (blocks_[kKvPool].references(BlockId{*b}) > 1) break;
  return n;
}

void CacheManager::admit(Sequence& s) {
  if (recurrent_) {
    s.memory.state_slot = states_.allocate();
    QUIRE_CHECK(s.memory.state_slot.valid(), "sequence {} is admitted without a state slot", s.id.v);
  }
  PrefixUse& p = s.prefix;
  if (!prefix_ || !p.reads) return;
  counts_.queries += s.prompt_tokens();
  p.miss = prefix_->explain(s.prompt(), p.match);
  ++counts_.misses[static_cast<size_t>(p.miss.reason)];
  if (p.match.usable > 0) {
    const StateSlot state = prefix_->take(p.match, s.memory.tables);
    if (state.valid()) moves_.state_copies.emplace_back(state.v, s.memory.state_slot.v);
    if (p.match.moves > 0) loading_.push_back({&s, recurrent_ && !state.valid()});
    p.cached = p.computed = p.published = s.planned = p.match.usable;
    s.memory.anchor = static_cast<int32_t>(p.cached);
    counts_.hits += p.cached;
  }
  // Where this prompt leaves a known path others will leave it too.
  if (p.match.blocks > p.match.usable) p.checkpoints.add(p.match.blocks);
}

// Makes free blocks of what the cache can spare, and a few more: looking for them takes a walk through the cache.
void CacheManager::make_room(int32_t blocks) {
  const BlockPool& pool = blocks_[kKvPool];
  if (prefix_ && blocks > pool.free_count()) prefix_->make_room(blocks + pool.total() / 256);
}

void CacheManager::begin_step() {
  for (const Loading& l : loading_) {
    Sequence& s = *l.sequence;
    make_room(prefix_->blocks_to_load(s.prefix.match));
    const StateSlot state = prefix_->load(s.prefix.match, s.memory.kv(), s.memory.state_slot);
    if (l.state && state.valid()) moves_.state_copies.emplace_back(state.v, s.memory.state_slot.v);
  }
  loading_.clear();
}

void CacheManager::swap_out(Sequence& s, int32_t blocks) {
  SequenceMemory& m = s.memory;
  counts_.preemptions += !m.swapped_out();
  counts_.swapped_out += blocks;
  for (; blocks > 0; --blocks) {
    const BlockId page = host_blocks_.allocate();
    QUIRE_CHECK(page.valid() && !m.kv().blocks().empty(), "sequence {}: no block to swap out, or none to take it",
                s.id.v);
    moves_.outs.push_back({.device = m.kv().blocks().back(), .page = page.v});
    m.swapped.push_back(page.v);
    m.kv().truncate(blocks_[kKvPool], m.kv().capacity() - kBlockTokens);
  }
}

void CacheManager::swap_in(Sequence& s) {
  SequenceMemory& m = s.memory;
  counts_.swapped_in += static_cast<int64_t>(m.swapped.size());
  make_room(static_cast<int32_t>(m.swapped.size()));
  for (; m.swapped_out(); m.swapped.pop_back()) {
    const int64_t end = m.kv().capacity();
    QUIRE_CHECK(m.kv().reserve(blocks_[kKvPool], end, end + kBlockTokens), "no block for sequence {} to come back",
                s.id.v);
    moves_.ins.push_back({.device = m.kv().blocks().back(), .page = m.swapped.back()});
    host_blocks_.release(BlockId{m.swapped.back()});
  }
}

void CacheManager::reserve(Sequence& s, int64_t begin, int64_t end) {
  make_room(s.memory.kv().blocks_needed(end));
  for (size_t i = 0; i < blocks_.size(); ++i)
    QUIRE_CHECK(s.memory.tables[i].reserve(blocks_[i], begin, end), "no {} block for sequence {}: {} of {} in use",
                pools_[i].name, s.id.v, blocks_[i].used_count(), blocks_[i].total());
}

bool CacheManager::is_checkpoint(const Sequence& s, int64_t end) const {
  return prefix_ && recurrent_ && s.prefix.checkpoints.contains(end);
}

void CacheManager::save_state(Sequence& s, SequenceRows& rows) {
  const int64_t at = std::exchange(s.prefix.unsaved, 0);
  if (prefix_->has_state(s.prompt(), at)) return;
  rows.saved = prefix_->allocate_state();
  if (!rows.saved.valid()) return;
  rows.saved_at = s.prefix.saving = at;
  moves_.state_copies.emplace_back(s.memory.state_slot.v, rows.saved.v);
}

const StepMoves& CacheManager::step_moves(StepRecord& record) {
  record.pools = uses();
  record.swapped_out = static_cast<int32_t>(moves_.outs.size());
  record.swapped_in = static_cast<int32_t>(moves_.ins.size());
  if (!host_tier_) return moves_;
  record.host_stored = static_cast<int32_t>(host_tier_->outs().size());
  record.host_loaded = static_cast<int32_t>(host_tier_->ins().size());
  moves_.outs.insert(moves_.outs.end(), host_tier_->outs().begin(), host_tier_->outs().end());
  moves_.ins.insert(moves_.ins.end(), host_tier_->ins().begin(), host_tier_->ins().end());
  return moves_;
}

void CacheManager::end_step() {
  moves_.outs.clear();
  moves_.ins.clear();
  moves_.state_copies.clear();
  if (prefix_) prefix_->end_step();
}

void CacheManager::publish(const SequenceRows& rows, bool succeeded) {
  if (!prefix_) return;
  Sequence& s = *rows.sequence;
  PrefixUse& p = s.prefix;
  if (succeeded) p.computed = std::max(p.computed, rows.prompt_end);
  const int64_t whole = p.computed / kChunkTokens * kChunkTokens;
  if (whole > p.published && !s.memory.swapped_out()) {
    prefix_->publish(s.prompt(), whole, s.memory.tables);
    if (has_windows())
      for (int64_t at = p.checkpoints.next(p.published); at > 0 && at <= whole; at = p.checkpoints.next(at))
        prefix_->keep_windows(s.prompt(), at);
    p.published = whole;
  }
  if (!rows.saved.valid()) return;
  if (p.saving == rows.saved_at) p.saving = 0;
  if (succeeded)
    prefix_->publish_state(s.prompt(), rows.saved_at, rows.saved);
  else
    prefix_->drop_state(rows.saved);
}

void CacheManager::release_windows(const SequenceRows& rows) {
  // From the first key on that the next row looks at. Without a prefix cache nobody finds what was before.
  for (size_t i = kKvPool + 1; i < blocks_.size(); ++i)
    rows.sequence->memory.tables[i].release_before(blocks_[i], rows.settled - pools_[i].window + 1,
                                                   window_filler(blocks_[i].total()), prefix_ == nullptr);
}

void CacheManager::release(Sequence& s) {
  SequenceMemory& m = s.memory;
  for (size_t i = 0; i < m.tables.size(); ++i) m.tables[i].clear(blocks_[i]);
  for (const int32_t page : m.swapped) host_blocks_.release(BlockId{page});
  m.swapped.clear();
  if (m.state_slot.valid()) states_.release(m.state_slot);
}

// That every reference is a sequence's, and that of windows no one holds more than was set aside for it.
Status CacheManager::check_blocks(int pool, std::span<const std::unique_ptr<Sequence>> running) const {
  const auto i = static_cast<size_t>(pool);
  const BlockPool& blocks = blocks_[i];
  QUIRE_CHECKED(blocks.check());
  int64_t held = 0, references = 0, most = needs_[i].steps;
  for (const auto& s : running) {
    held += s->memory.tables[i].held();
    most += s->memory.most[i];
  }
  for (int32_t b = 0; b < blocks.total(); ++b) references += blocks.references(BlockId{b});
  const bool set_aside = !pools_[i].is_window() || (held <= most && most <= blocks.total());
  if (held == references && set_aside) return {};
  return Error{Fault::kBug, fmt::format("{} sequences hold {} {} blocks, of {} that they may; the pool says {} of {}",
                                        running.size(), held, pools_[i].name, most, references, blocks.total())};
}

Status CacheManager::check(std::span<const std::unique_ptr<Sequence>> running) const {
  for (size_t i = 0; i < blocks_.size(); ++i) QUIRE_CHECKED(check_blocks(static_cast<int>(i), running));
  QUIRE_CHECKED(states_.check());
  QUIRE_CHECKED(host_blocks_.check());
  if (prefix_) QUIRE_CHECKED(prefix_->check());
  int64_t states = prefix_ ? prefix_->states_held() : 0, pages = 0;
  for (const auto& s : running) {
    pages += std::ssize(s->memory.swapped);
    states += s->memory.state_slot.valid();
  }
  if (states == states_.used_count() && pages == host_blocks_.used_count()) return {};
  return Error{
      Fault::kBug,
      fmt::format("{} sequences and the cache hold {} pages of the host and {} states; the pools say {} and {}",
                  running.size(), pages, states, host_blocks_.used_count(), states_.used_count())};
}

}  // namespace quire
