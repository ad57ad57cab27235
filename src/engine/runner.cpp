#include "engine/runner.h"

#include <algorithm>
#include <bit>
#include <chrono>

namespace quire {

Runner::Runner(Backend& backend, const EngineOptions& options, const ModelConfig& model)
    : backend_(backend),
      depth_(options.depth),
      recurrent_(model.hybrid),
      blocks_(backend.blocks(), options.shuffle_blocks),
      slots_(backend.slots()) {
  const StepCapacity& c = backend.layout().capacity();
  at_place_.resize(static_cast<size_t>(c.places));
  for (int32_t p = c.places - 1; p >= 0; --p) free_places_.push_back(p);
  running_.reserve(at_place_.size());
  copies_.reserve(static_cast<size_t>(c.block_copies));
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
    flight_[i].mentions.reserve(static_cast<size_t>(c.segments));
  }
  retired_.rows.reserve(static_cast<size_t>(c.logit_rows));
}

void Runner::admit(std::unique_ptr<Sequence> s) {
  QUIRE_CHECK(!free_places_.empty(), "sequence {} is admitted without a place", s->id.v);
  s->place = free_places_.back();
  free_places_.pop_back();
  if (recurrent_) {
    s->slot = slots_.allocate();
    QUIRE_CHECK(s->slot.valid(), "sequence {} is admitted without a state slot", s->id.v);
  }
  at_place_[static_cast<size_t>(s->place)] = s.get();
  running_.push_back(std::move(s));
}

void Runner::submit(const StepPlan& plan) {
  QUIRE_CHECK(flights_ < depth_, "{} steps are under way already", flights_);
  const int buffer = (oldest_ + flights_) % kMostDepth;
  Flight& flight = flight_[buffer];
  flight.buffer = buffer;
  flight.mentions.clear();
  flight.prompt_rows = flight.decode_rows = 0;
  copies_.clear();
  samples_[static_cast<size_t>(buffer)].clear();
  noting_ = &notes_[static_cast<size_t>(buffer)];
  noting_->clear();

  StepShape shape;
  for (const Work& w : plan.work)
    shape.longest = std::max(shape.longest, static_cast<int32_t>(w.begin + w.count));
  const auto blocks = static_cast<uint32_t>((shape.longest + kBlockTokens - 1) / kBlockTokens);
  shape.table_width = std::min(static_cast<int32_t>(std::max(16u, std::bit_ceil(blocks))),
                               backend_.layout().capacity().table_width);
  const StepLayout::Arrays to = backend_.layout().arrays(backend_.staging(buffer));
  for (size_t i = 0; i < plan.work.size(); ++i)
    add(plan.work[i], i < plan.decodes, shape, to, flight, samples_[static_cast<size_t>(buffer)]);
  shape.block_copies = static_cast<int32_t>(copies_.size());
  for (size_t i = 0; i < copies_.size(); ++i) {
    to.block_copies[2 * i] = copies_[i].first;
    to.block_copies[2 * i + 1] = copies_[i].second;
  }
  shape.notes = noting_->count();
  shape.biases = samples_[static_cast<size_t>(buffer)].biases();
  ++flights_;
  backend_.submit(buffer, shape);
}

// The rows of one sequence.
void Runner::add(const Work& w, bool decode, StepShape& shape, const StepLayout::Arrays& to, Flight& flight,
                 SampleRowList& samples) {
  Sequence& s = *at_place_[static_cast<size_t>(w.seq.v)];
  const int64_t end = w.begin + w.count;
  QUIRE_CHECK(w.begin == s.planned && !s.finished, "sequence {} is planned from {}, not {}", s.id.v, w.begin,
              s.planned);
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
    const bool known = position < static_cast<int64_t>(s.tokens.size());
    to.tokens[row + i] = known ? s.tokens[static_cast<size_t>(position)] : 0;
    to.sources[row + i] = known ? -1 : s.place;
  }
  if (!decode && s.request.sampling.has_penalties()) note(s, row, w);
  shape.rows += w.count;
  (decode ? flight.decode_rows : flight.prompt_rows) += w.count;
  if (decode) shape.decode_rows += w.count, ++shape.decodes, shape.decode_keys += end;
  s.anchor = decode ? anchor_after_decode(placed) : anchor_after_prompt(placed);
  s.planned = end;
  ++s.in_flight;
  flight.mentions.push_back({&s, -1});
  if (end >= s.prompt_tokens()) add_sample(s, row + w.count - 1, decode, shape, to, flight, samples);
}

void Runner::add_sample(Sequence& s, int32_t row, bool decode, StepShape& shape, const StepLayout::Arrays& to,
                        Flight& flight, SampleRowList& samples) {
  const SampleTarget target{.position = s.planned,
                            .place = s.place,
                            .history = s.request.sampling.has_penalties() ? s.place : -1,
                            .tentative = false};
  const Status added = samples.add(s.request.sampling, target);
  QUIRE_CHECK(added.ok(), "sequence {}: {}", s.id.v, added.error().message);
  flight.mentions.back().logit_row = shape.logit_rows;
  to.logit_rows[shape.logit_rows++] = row;
  if (decode) ++shape.decode_logit_rows;
  ++s.pending;
}

// A prompt's tokens go into the history that penalties look back on, chunk by chunk.
void Runner::note(Sequence& s, int32_t row, const Work& w) {
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
  retired_.prompt_rows = flight.prompt_rows;
  retired_.decode_rows = flight.decode_rows;
  for (const Flight::Mention& m : flight.mentions) {
    --m.sequence->in_flight;
    if (m.logit_row < 0) continue;
    --m.sequence->pending;
    if (done.ok() && !m.sequence->finished)
      retired_.rows.push_back({m.sequence, read_sampled(done->out, m.logit_row)});
  }
  if (!done.ok()) return done.take_error();
  retired_.seconds = done->seconds;
  return &retired_;
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
  if (s.slot.valid()) slots_.release(s.slot);
  at_place_[static_cast<size_t>(s.place)] = nullptr;
  free_places_.push_back(s.place);
}

Status Runner::check() const {
  QUIRE_CHECKED(blocks_.check());
  QUIRE_CHECKED(slots_.check());
  int64_t held = 0, slots = 0;
  for (const auto& s : running_) {
    held += static_cast<int64_t>(s->table.blocks().size());
    slots += s->slot.valid();
  }
  if (held != blocks_.used_count() || slots != slots_.used_count() ||
      running_.size() + free_places_.size() != at_place_.size())
    return Error{Fault::kBug,
                 fmt::format("{} sequences hold {} blocks and {} slots, the pools say {} and {}; {} places "
                             "of {} are free",
                             running_.size(), held, slots, blocks_.used_count(), slots_.used_count(),
                             free_places_.size(), at_place_.size())};
  return {};
}

}  // namespace quire
