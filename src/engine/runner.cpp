#include "engine/runner.h"

#include <algorithm>
#include <chrono>

#include "engine/graph_sizes.h"

namespace quire {

Runner::Runner(Backend& backend, const EngineOptions& options, const ModelConfig& model)
    : backend_(backend),
      depth_(options.depth),
      recurrent_(model.has_state()),
      pooling_(options.pooling),
      blocks_(backend.blocks(), options.shuffle_blocks),
      host_blocks_(backend.host_pages().swap),
      slots_(backend.slots()) {
  // A model with recurrent layers can go on only from saved states.
  const int32_t states = recurrent_ ? backend.slots() - options.max_sequences : -1;
  if (options.prefix_cache && states != 0) {
    const HostPages pages = backend.host_pages();
    if (pages.cache >= kChunkBlocks)
      host_tier_.emplace(HostTier::Options{.first = pages.swap,
                                           .pages = pages.cache,
                                           .state_pages = recurrent_ ? options.state_pages(model) : 0,
                                           .moves = options.cache_moves(model)});
    cache_ = std::make_unique<PrefixCache>(blocks_, slots_, states, host_tier_ ? &*host_tier_ : nullptr);
  }
  const StepCapacity& c = backend.layout().capacity();
  at_place_.resize(static_cast<size_t>(c.places));
  for (int32_t p = c.places - 1; p >= 0; --p) free_places_.push_back(p);
  running_.reserve(at_place_.size());
  loading_.reserve(at_place_.size());
  copies_.reserve(static_cast<size_t>(c.block_copies));
  slot_copies_.reserve(static_cast<size_t>(c.slot_copies));
  const SampleLimits limits{.vocab = model.vocab,
                            .places = c.places,
                            .histories = c.places,
                            .max_top = c.max_top,
                            .max_bias = options.max_logit_bias};
  for (int i = 0; i < kMostDepth; ++i) {
    const StepLayout::Arrays a = backend.layout().arrays(backend.staging(i));
    const auto biases = static_cast<size_t>(c.biases);
    samples_.emplace_back(limits, SampleRowList::Memory{{a.sample_rows, static_cast<size_t>(c.logit_rows)},
                                                        {a.bias_ids, biases},
                                                        {a.bias_values, biases}});
    notes_.emplace_back(c.places, std::span(a.notes, static_cast<size_t>(c.segments)));
    past_notes_.emplace_back(c.places, std::span(a.past_notes, static_cast<size_t>(c.segments)));
    flight_[i].mentions.reserve(static_cast<size_t>(c.segments));
  }
  retired_.rows.reserve(static_cast<size_t>(c.logit_rows));
  retired_.prompts.reserve(static_cast<size_t>(c.segments));
}

void Runner::admit(std::unique_ptr<Sequence> s) {
  QUIRE_CHECK(!free_places_.empty(), "sequence {} is admitted without a place", s->id.v);
  s->place = free_places_.back();
  free_places_.pop_back();
  if (recurrent_) {
    s->slot = slots_.allocate();
    QUIRE_CHECK(s->slot.valid(), "sequence {} is admitted without a state slot", s->id.v);
  }
  if (cache_ && !s->whole) {
    counts_.queries += s->prompt_tokens();
    s->miss = cache_->explain(s->prompt(), s->match);
    ++counts_.misses[static_cast<size_t>(s->miss.reason)];
    if (s->match.usable > 0) {
      const StateSlot state = cache_->take(s->match, s->table);
      if (state.valid()) slot_copies_.emplace_back(state.v, s->slot.v);
      if (s->match.moves > 0) loading_.push_back({s.get(), recurrent_ && !state.valid()});
      s->cached = s->computed = s->published = s->planned = s->match.usable;
      s->anchor = static_cast<int32_t>(s->cached);
      counts_.hits += s->cached;
    }
    // Where it leaves a known path others will leave it too.
    if (s->match.blocks > s->match.usable) s->checkpoints.add(s->match.blocks);
  }
  at_place_[static_cast<size_t>(s->place)] = s.get();
  running_.push_back(std::move(s));
}

void Runner::find_prefix(Sequence& s) {
  if (cache_ && !s.whole) cache_->find(s.prompt(), s.match);
}

int64_t Runner::next_cut(const Sequence& s) const {
  return s.planned < s.prompt_tokens() ? cut_after(s, s.planned) : 0;
}

int64_t Runner::first_cut(const Sequence& s) const {
  const int64_t at = cut_after(s, s.match.usable), leaves = s.match.blocks;
  const bool there = cache_ && recurrent_ && leaves > s.match.usable && (at == 0 || leaves < at);
  return there ? leaves : at;
}

int64_t Runner::cut_after(const Sequence& s, int64_t position) const {
  if (!cache_ || !recurrent_) return 0;
  int64_t at = s.checkpoints.next(position);
  while (at > 0 && cache_->has_state(s.prompt(), at)) at = s.checkpoints.next(at);
  return at;
}

int32_t Runner::sole_blocks(const Sequence& s) const {
  int32_t n = 0;
  for (auto b = s.table.blocks().rbegin(); b != s.table.blocks().rend(); ++b, ++n)
    if (blocks_.references(BlockId{*b}) > 1) break;
  return n;
}

// Makes free blocks of what the cache can spare, and a few more: looking for them takes a walk through the cache.
void Runner::make_room(int32_t blocks) {
  if (cache_ && blocks > blocks_.free_count()) cache_->make_room(blocks + blocks_.total() / 256);
}

// What the admitted ones found on the host. All of them have their blocks on the device by now, and make room no more.
void Runner::load_prefixes() {
  for (const Loading& l : loading_) {
    Sequence& s = *l.sequence;
    make_room(cache_->blocks_to_load(s.match));
    const StateSlot state = cache_->load(s.match, s.table, s.slot);
    if (l.state && state.valid()) slot_copies_.emplace_back(state.v, s.slot.v);
  }
  loading_.clear();
}

StepRecord& Runner::submit(const StepPlan& plan, const StepRecord& record) {
  QUIRE_CHECK(flights_ < depth_, "{} steps are under way already", flights_);
  const int buffer = (oldest_ + flights_) % kMostDepth;
  Flight& flight = flight_[buffer];
  flight.buffer = buffer;
  flight.mentions.clear();
  flight.record = record;
  samples_[static_cast<size_t>(buffer)].clear();
  noting_ = &notes_[static_cast<size_t>(buffer)];
  noting_->clear();
  noting_past_ = &past_notes_[static_cast<size_t>(buffer)];
  noting_past_->clear();

  StepShape shape;
  for (const Work& w : plan.work)
    shape.longest = std::max(shape.longest, static_cast<int32_t>(w.begin + w.count));
  const int32_t blocks = (shape.longest + kBlockTokens - 1) / kBlockTokens;
  shape.table_width = table_width(blocks, backend_.layout().capacity());
  const StepLayout::Arrays to = backend_.layout().arrays(backend_.staging(buffer));
  load_prefixes();
  for (const Preemption& p : plan.preempt)
    swap_out(*at_place_[static_cast<size_t>(p.seq.v)], p.blocks, shape, to);
  for (const SeqId id : plan.resume) swap_in(*at_place_[static_cast<size_t>(id.v)], shape, to);
  for (size_t i = 0; i < plan.work.size(); ++i)
    add(plan.work[i], i < plan.decodes, shape, to, flight, samples_[static_cast<size_t>(buffer)]);
  for (const SeqId id : plan.passed) ++at_place_[static_cast<size_t>(id.v)]->passed;
  write_copies(shape, to);
  write_moves(shape, to);
  copies_.clear();
  slot_copies_.clear();
  note_books(shape, flight.record);
  if (cache_) cache_->end_step();
  shape.notes = noting_->count();
  shape.past_notes = noting_past_->count();
  shape.biases = samples_[static_cast<size_t>(buffer)].biases();
  ++flights_;
  backend_.submit(buffer, shape);
  return flight.record;
}

void Runner::write_copies(StepShape& shape, const StepLayout::Arrays& to) const {
  shape.block_copies = static_cast<int32_t>(copies_.size());
  for (size_t i = 0; i < copies_.size(); ++i)
    to.block_copies[2 * i] = copies_[i].first, to.block_copies[2 * i + 1] = copies_[i].second;
  shape.slot_copies = static_cast<int32_t>(slot_copies_.size());
  for (size_t i = 0; i < slot_copies_.size(); ++i)
    to.slot_copies[2 * i] = slot_copies_[i].first, to.slot_copies[2 * i + 1] = slot_copies_[i].second;
}

void Runner::note_books(const StepShape& shape, StepRecord& record) const {
  record.blocks_free = blocks_.free_count();
  record.blocks_cached = blocks_.cached_count();
  record.blocks_used = blocks_.used_count();
  const auto stored = host_tier_ ? static_cast<int32_t>(host_tier_->outs().size()) : 0;
  const auto loaded = host_tier_ ? static_cast<int32_t>(host_tier_->ins().size()) : 0;
  record.swapped_out = shape.swap_outs - stored;
  record.swapped_in = shape.swap_ins - loaded;
  record.host_stored = stored;
  record.host_loaded = loaded;
}

// What the prefix cache moves, behind what sequences do.
void Runner::write_moves(StepShape& shape, const StepLayout::Arrays& to) const {
  if (!host_tier_) return;
  std::ranges::copy(host_tier_->outs(), to.swap_outs + shape.swap_outs);
  shape.swap_outs += static_cast<int32_t>(host_tier_->outs().size());
  std::ranges::copy(host_tier_->ins(), to.swap_ins + shape.swap_ins);
  shape.swap_ins += static_cast<int32_t>(host_tier_->ins().size());
}

// The sequence's place stays its own, and so do its state slot, its history and its last token: there are as many of each
// as there are places, and only blocks are scarce.
void Runner::swap_out(Sequence& s, int32_t blocks, StepShape& shape, const StepLayout::Arrays& to) {
  counts_.preemptions += !s.swapped_out();
  counts_.swapped_out += blocks;
  for (; blocks > 0; --blocks) {
    const BlockId host = host_blocks_.allocate();
    QUIRE_CHECK(host.valid() && !s.table.blocks().empty(),
                "sequence {}: no block to swap out, or none to take it", s.id.v);
    to.swap_outs[shape.swap_outs++] = {.device = s.table.blocks().back(), .page = host.v};
    s.host.push_back(host.v);
    s.table.truncate(blocks_, s.table.capacity() - kBlockTokens);
  }
}

void Runner::swap_in(Sequence& s, StepShape& shape, const StepLayout::Arrays& to) {
  counts_.swapped_in += static_cast<int64_t>(s.host.size());
  make_room(static_cast<int32_t>(s.host.size()));
  for (; !s.host.empty(); s.host.pop_back()) {
    const int64_t end = s.table.capacity();
    QUIRE_CHECK(s.table.reserve(blocks_, end, end + kBlockTokens, copies_),
                "no block for sequence {} to come back", s.id.v);
    to.swap_ins[shape.swap_ins++] = {.device = s.table.blocks().back(), .page = s.host.back()};
    host_blocks_.release(BlockId{s.host.back()});
  }
}

// The step begins with the state that the chunk before left in the sequence's slot: it is copied before it changes.
void Runner::save_state(Sequence& s, Flight::Mention& mention) {
  const int64_t at = std::exchange(s.unsaved, 0);
  if (cache_->has_state(s.prompt(), at)) return;
  mention.saved = cache_->allocate_state();
  if (!mention.saved.valid()) return;
  mention.saved_at = s.saving = at;
  slot_copies_.emplace_back(s.slot.v, mention.saved.v);
}

// The rows of one sequence.
void Runner::add(const Work& w, bool decode, StepShape& shape, const StepLayout::Arrays& to, Flight& flight,
                 SampleRowList& samples) {
  Sequence& s = *at_place_[static_cast<size_t>(w.seq.v)];
  const int64_t end = w.begin + w.count;
  QUIRE_CHECK(w.begin == s.planned && !s.finished, "sequence {} is planned from {}, not {}", s.id.v, w.begin,
              s.planned);
  make_room(s.table.blocks_needed(blocks_, w.begin, end));
  const bool reserved = s.table.reserve(blocks_, w.begin, end, copies_);
  QUIRE_CHECK(reserved, "no block for sequence {}: {} of {} in use", s.id.v, blocks_.used_count(),
              blocks_.total());

  const int32_t row = shape.rows, segment = shape.segments++;
  const Segment placed{.row = row,
                       .count = w.count,
                       .position = static_cast<int32_t>(w.begin),
                       .state_slot = s.slot.v,
                       .anchor = s.anchor};
  to.segments[segment] = placed;
  std::copy_n(s.table.data(), s.table.blocks().size(), to.tables + int64_t{segment} * shape.table_width);
  // Tokens that are not committed yet are what this sequence's place sampled in the step before.
  for (int32_t i = 0; i < w.count; ++i) {
    const int64_t position = w.begin + i;
    const bool known = position < s.committed();
    to.tokens[row + i] = known ? s.token(position) : 0;
    to.sources[row + i] = known ? -1 : s.place;
  }
  if (!decode && s.request.sampling.has_penalties()) note(s, row, w, shape, to);
  shape.rows += w.count;
  (decode ? flight.record.decode_rows : flight.record.prompt_rows) += w.count;
  if (decode) shape.decode_rows += w.count, ++shape.decodes, shape.decode_keys += end;
  s.anchor = decode ? anchor_after_decode(placed) : anchor_after_prompt(placed);
  s.planned = end;
  s.passed = 0;
  ++s.in_flight;
  Flight::Mention& mention = flight.mentions.emplace_back(&s, -1);
  if (!decode) mention.prompt_end = end;
  if (s.unsaved > 0) save_state(s, mention);
  if (!decode && cache_ && recurrent_ && s.checkpoints.contains(end)) s.unsaved = end;
  if (!decode && s.scored != nullptr) add_scores(s, row, w, shape, to, mention);
  if (s.request.embed) add_hidden(s, row, w.count, shape, to, mention);
  if (end >= s.prompt_tokens() && s.request.max_tokens > 0)
    add_sample(s, row + w.count - 1, decode, shape, to, flight, samples);
}

void Runner::add_sample(Sequence& s, int32_t row, bool decode, StepShape& shape, const StepLayout::Arrays& to,
                        Flight& flight, SampleRowList& samples) {
  const SampleTarget target{.position = s.planned,
                            .place = s.place,
                            .history = s.request.sampling.has_penalties() ? s.place : -1,
                            .tentative = false,
                            .forbidden = s.forbidden(s.planned)};
  const Status added = samples.add(s.request.sampling, target);
  QUIRE_CHECK(added.ok(), "sequence {}: {}", s.id.v, added.error().message);
  flight.mentions.back().logit_row = shape.logit_rows;
  to.logit_rows[shape.logit_rows++] = row;
  if (decode) ++shape.decode_logit_rows;
  ++s.pending;
}

// Which rows of a chunk an embedding is made of.
void Runner::add_hidden(const Sequence& s, int32_t row, int32_t count, StepShape& shape,
                        const StepLayout::Arrays& to, Flight::Mention& mention) const {
  const int32_t ends = mention.prompt_end == s.prompt_tokens() ? 1 : 0;
  mention.hidden_row = shape.hidden_rows;
  mention.hidden_count = pooling_ == Pooling::kMean ? count : ends;
  for (int32_t i = count - mention.hidden_count; i < count; ++i)
    to.hidden_rows[shape.hidden_rows++] = row + i;
}

void Runner::pool(const Flight::Mention& m, const Tensor& hidden) {
  Sequence& s = *m.sequence;
  for (int32_t i = 0; i < m.hidden_count; ++i)
    s.pooled.add({hidden.row<float>(m.hidden_row + i), static_cast<size_t>(hidden.dim(1))});
}

// A row tells of the token after it: of a prompt's last one that is not known yet.
void Runner::add_scores(const Sequence& s, int32_t row, const Work& w, StepShape& shape,
                        const StepLayout::Arrays& to, Flight::Mention& mention) const {
  mention.scored_row = shape.scored_rows;
  mention.scored_count = static_cast<int32_t>(std::min<int64_t>(w.count, s.prompt_tokens() - 1 - w.begin));
  for (int32_t i = 0; i < mention.scored_count; ++i) {
    to.scored_rows[shape.scored_rows] = row + i;
    to.score_rows[shape.scored_rows++] = {.logprobs = s.request.prompt_logprobs,
                                          .target = s.request.prompt[static_cast<size_t>(w.begin + i + 1)]};
  }
}

// Rows come in the order of their positions: chunks of a prompt do.
void Runner::keep_scores(const Flight::Mention& m, const SampleOutputs& scored) const {
  Sequence& s = *m.sequence;
  PromptLogprobs& kept = *s.scored;
  for (int32_t i = m.scored_row; i < m.scored_row + m.scored_count; ++i) {
    const Sampled row = read_sampled(scored, i);
    s.damaged |= row.token < 0;
    kept.logprobs.push_back(row.logprob);
    kept.ranks.push_back(scored.ranks.as<int32_t>()[i]);
    kept.top.insert(kept.top.end(), row.top.begin(), row.top.end());
    kept.top.resize(kept.logprobs.size() * kept.tops);
  }
}

// A prompt's tokens go into the history that penalties look back on, chunk by chunk.
void Runner::note(Sequence& s, int32_t row, const Work& w, StepShape& shape, const StepLayout::Arrays& to) {
  if (!s.noted && s.cached > 0) {  // what the cache had of it comes first
    const auto count = static_cast<int32_t>(s.cached);
    const Status past = noting_past_->add(
        {.history = s.place, .begin = shape.past_tokens, .count = count, .prompt = count, .reset = 1},
        backend_.layout().capacity().past);
    QUIRE_CHECK(past.ok(), "sequence {}: {}", s.id.v, past.error().message);
    std::copy_n(s.request.prompt.data(), count, to.past_tokens + shape.past_tokens);
    shape.past_tokens += count;
    s.noted = true;
  }
  const Status noted = noting_->add(
      {.history = s.place, .begin = row, .count = w.count, .prompt = w.count, .reset = s.noted ? 0 : 1},
      row + w.count);
  QUIRE_CHECK(noted.ok(), "sequence {}: {}", s.id.v, noted.error().message);
  s.noted = true;
}

Result<const Runner::Retired*> Runner::retire() {
  QUIRE_CHECK(flights_ > 0, "no step is under way");
  Flight& flight = flight_[oldest_];
  const auto begin = std::chrono::steady_clock::now();
  Result<StepResults> done = backend_.wait(flight.buffer);
  waited_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  oldest_ = (oldest_ + 1) % kMostDepth;
  --flights_;
  retired_.rows.clear();
  retired_.prompts.clear();
  retired_.record = flight.record;
  for (Flight::Mention& m : flight.mentions) {
    --m.sequence->in_flight;
    m.sequence->spoiled |= !done.ok();
    publish(m, !m.sequence->spoiled);
    if (done.ok() && !m.sequence->finished) {
      if (m.hidden_count > 0) pool(m, done->hidden);
      if (m.scored_count > 0) keep_scores(m, done->scored);
      const Sequence& s = *m.sequence;
      if (s.request.max_tokens == 0 && m.prompt_end == s.prompt_tokens())
        retired_.prompts.push_back(m.sequence);
    }
    if (m.logit_row < 0) continue;
    --m.sequence->pending;
    if (done.ok() && !m.sequence->finished)
      retired_.rows.push_back({m.sequence, read_sampled(done->out, m.logit_row)});
  }
  if (!done.ok()) return done.take_error();
  retired_.record.device_seconds = done->seconds;
  return &retired_;
}

// What the step computed of a prompt can be found from now on.
void Runner::publish(Flight::Mention& m, bool done) {
  if (!cache_) return;
  Sequence& s = *m.sequence;
  if (done) s.computed = std::max(s.computed, m.prompt_end);
  const int64_t whole = s.computed / kChunkTokens * kChunkTokens;
  if (whole > s.published && !s.swapped_out()) {
    cache_->publish(s.prompt(), whole, s.table);
    s.published = whole;
  }
  if (!m.saved.valid()) return;
  if (s.saving == m.saved_at) s.saving = 0;
  if (done)
    cache_->publish_state(s.prompt(), m.saved_at, m.saved);
  else
    cache_->drop_state(m.saved);
}

void Runner::finish(Sequence& s) {
  s.finished = true;
}

void Runner::release_finished() {
  std::erase_if(running_, [&](const std::unique_ptr<Sequence>& s) {
    if (!s->finished || s->in_flight > 0) return false;
    give_back(*s);
    return true;
  });
}

void Runner::give_back(Sequence& s) {
  s.table.clear(blocks_);
  for (const int32_t b : s.host) host_blocks_.release(BlockId{b});
  s.host.clear();
  if (s.slot.valid()) slots_.release(s.slot);
  at_place_[static_cast<size_t>(s.place)] = nullptr;
  free_places_.push_back(s.place);
}

Status Runner::check() const {
  QUIRE_CHECKED(blocks_.check());
  QUIRE_CHECKED(slots_.check());
  QUIRE_CHECKED(host_blocks_.check());
  if (cache_) QUIRE_CHECKED(cache_->check());
  int64_t held = 0, references = 0, slots = cache_ ? cache_->states_held() : 0, host = 0;
  for (const auto& s : running_) {
    held += static_cast<int64_t>(s->table.blocks().size());
    host += static_cast<int64_t>(s->host.size());
    slots += s->slot.valid();
  }
  for (int32_t b = 0; b < blocks_.total(); ++b) references += blocks_.references(BlockId{b});
  if (held != references || slots != slots_.used_count() || host != host_blocks_.used_count() ||
      running_.size() + free_places_.size() != at_place_.size())
    return Error{
        Fault::kBug,
        fmt::format("{} sequences and the cache hold {} blocks, {} of the host, and {} slots, the pools say "
                    "{}, {} and {}; {} places of {} are free",
                    running_.size(), held, host, slots, references, host_blocks_.used_count(),
                    slots_.used_count(), free_places_.size(), at_place_.size())};
  return {};
}

}  // namespace quire
