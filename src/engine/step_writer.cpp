#include "engine/step_writer.h"

#include <algorithm>

#include "engine/graph_sizes.h"

namespace quire {

StepWriter::StepWriter(Backend& backend, const EnginePlan& plan, const ModelConfig& model)
    : backend_(backend), pooling_(plan.pooling) {
  const StepCapacity& c = backend.layout().capacity();
  const SampleLimits limits{.vocab = model.vocab,
                            .batch_slots = c.batch_slots,
                            .histories = c.batch_slots,
                            .max_top = c.max_top,
                            .max_bias = plan.max_logit_bias,
                            .masks = c.masks};
  const auto biases = static_cast<size_t>(c.biases), segments = static_cast<size_t>(c.segments);
  for (int i = 0; i < plan.step_buffers(); ++i) {
    const StepArrays a = backend.layout().arrays(backend.staging(i));
    lists_.push_back({.samples = {limits, SampleRowList::Memory{{a.sample_rows, static_cast<size_t>(c.logit_rows)},
                                                                {a.bias_ids, biases},
                                                                {a.bias_values, biases}}},
                      .history_updates = {c.batch_slots, std::span(a.history_updates, segments)},
                      .past_updates = {c.batch_slots, std::span(a.past_updates, segments)}});
  }
}

void StepWriter::begin(int buffer, const StepPlan& plan) {
  list_ = &lists_[static_cast<size_t>(buffer)];
  list_->samples.clear();
  list_->history_updates.clear();
  list_->past_updates.clear();
  to_ = backend_.layout().arrays(backend_.staging(buffer));
  shape_ = {};
  each_ = even_rows(plan);
  const StepCapacity& c = backend_.layout().capacity();
  if (c.drafts > 0) std::fill_n(to_.keep, c.kept(), -1);
  for (const Work& w : plan.work) shape_.longest = std::max(shape_.longest, static_cast<int32_t>(w.begin + w.count));
  const int32_t blocks = (shape_.longest + kBlockTokens - 1) / kBlockTokens;
  shape_.table_width = table_width(blocks, backend_.layout().capacity());
}

// As many rows as the sequence with the most drafts has, where that adds little padding and the backend gains by it.
int32_t StepWriter::even_rows(const StepPlan& plan) const {
  const auto decodes = static_cast<int64_t>(plan.decodes);
  if (!backend_.likes_even_rows() || plan.work.size() != plan.decodes) return 1;
  int64_t most = 1, rows = 0;
  for (const Work& w : plan.work) most = std::max<int64_t>(most, w.count), rows += w.count;
  const StepCapacity& c = backend_.layout().capacity();
  const bool fits = decodes * most <= std::min(c.rows, c.logit_rows);
  return fits && decodes * most <= rows + rows / 8 ? static_cast<int32_t>(most) : 1;
}

// Rows of a decode segment that hold nothing.
void StepWriter::pad_rows(int32_t count) {
  const StepCapacity& c = backend_.layout().capacity();
  for (; count > 0; --count) {
    const int32_t row = shape_.rows++;
    to_.tokens[row] = 0;
    to_.sources[row] = -1;
    if (c.drafts > 0) to_.next_tokens[row] = 0, to_.next_sources[row] = -1;
    to_.logit_rows[shape_.logit_rows++] = -1;
    ++shape_.decode_logit_rows;
    ++shape_.decode_rows;
  }
  const Status padded = list_->samples.pad(shape_.logit_rows);
  QUIRE_CHECK(padded.ok(), "{}", padded.error().message);
}

Segment StepWriter::add(Sequence& s, const Work& work, bool decode, SequenceRows& rows) {
  const int64_t end = work.begin + work.count;
  const Segment segment{.row = shape_.rows,
                        .count = work.count,
                        .position = static_cast<int32_t>(work.begin),
                        .state_slot = s.memory.state_slot.v,
                        .anchor = s.memory.anchor,
                        .tentative = decode ? work.count - 1 : 0};
  to_.segments[shape_.segments] = segment;
  const StepCapacity& c = backend_.layout().capacity();
  int32_t* const tables = to_.tables + int64_t{shape_.segments} * c.table_pitch(shape_.table_width);
  for (size_t pool = 0; pool < s.memory.tables.size(); ++pool)
    std::ranges::copy(s.memory.tables[pool].blocks(), tables + static_cast<int64_t>(pool) * shape_.table_width);
  add_tokens(s, work);
  if (!decode && s.request.sampling.has_penalties()) add_history(s, work);
  if (!decode) rows.prompt_end = end;
  if (!decode && s.results.logprobs != nullptr) add_scores(s, work, rows);
  if (s.request.embed) add_hidden(s, work, rows);
  if (end >= s.prompt_tokens() && s.request.max_tokens > 0) add_sample(s, work, decode, rows);
  if (backend_.layout().capacity().drafts > 0) {
    if (decode) add_drafts(s, work);
    add_follow(s, work, decode, rows);
  }
  ++shape_.segments;
  shape_.rows += work.count;
  if (!decode) return segment;
  shape_.decode_rows += work.count;
  shape_.decode_keys += end;
  shape_.most_rows = std::max({shape_.most_rows, work.count, each_});
  ++shape_.decodes;
  if (work.count < each_) pad_rows(each_ - work.count);
  return segment;
}

// A token that is not committed yet is what this sequence's batch slot sampled in the step before, and tokens behind
// that are drafts.
void StepWriter::add_tokens(const Sequence& s, const Work& work) {
  for (int32_t i = 0; i < work.count; ++i) {
    const int64_t position = work.begin + i;
    int32_t token = 0, source = -1;
    if (position < s.committed())
      token = s.token(position);
    else if (i == 0)
      source = s.memory.slot;
    else if (s.drafts.by_mtp)
      source = backend_.layout().capacity().draft_entry(s.memory.slot, i - 1);
    else
      token = s.drafts.tokens[static_cast<size_t>(i - 1)];
    to_.tokens[shape_.rows + i] = token;
    to_.sources[shape_.rows + i] = source;
    add_coordinates(s, position, to_.coordinates + 3 * int64_t{shape_.rows + i});
  }
}

void StepWriter::add_coordinates(const Sequence& s, int64_t position, int32_t* to) const {
  if (backend_.layout().capacity().coordinates == 0) return;
  const auto at = static_cast<int32_t>(position);
  std::ranges::copy(s.pictures.empty() ? Coordinates{at, at, at} : s.request.images->coordinates(position), to);
}

void StepWriter::add_pictures(const Sequence& s, const Segment& segment, Encoder& encoder) {
  const PromptImages& images = *s.request.images;
  const int64_t end = int64_t{segment.position} + segment.count;
  const StepCapacity& c = backend_.layout().capacity();
  for (size_t i = images.at(segment.position); i < images.size() && images[i].position < end; ++i) {
    if (!shape_.pictures) {
      std::fill_n(to_.picture_rows, c.rows, -1);
      if (c.ends) std::fill_n(to_.ends, c.rows, 0);
    }
    shape_.pictures = true;
    const int64_t first = encoder.row_of(s, i), begin = std::max<int64_t>(images[i].position, segment.position);
    for (int64_t at = begin; at < std::min(images[i].end(), end); ++at) {
      const int64_t row = segment.row + (at - segment.position);
      to_.picture_rows[row] = static_cast<int32_t>(first + at - images[i].position);
      if (c.ends) to_.ends[row] = static_cast<int32_t>(images[i].end());
    }
  }
}

void StepWriter::add_drafts(const Sequence& s, const Work& work) {
  const StepCapacity& c = backend_.layout().capacity();
  const int32_t i = shape_.decodes, drafts = s.drafts.by_mtp ? work.count - 1 : 0;
  to_.draft_rows[i] = i;
  // Of those that draft nothing, any that there is.
  to_.kept_rows[i] = s.memory.slot * (c.drafts + 1);
  if (drafts > 0) {
    QUIRE_CHECK(work.begin < s.committed() && work.begin > s.drafts.kept_first && work.begin <= s.drafts.kept_end,
                "sequence {}: drafts after {} tokens, but hidden states of [{}, {}) are kept", s.id.v, work.begin,
                s.drafts.kept_first, s.drafts.kept_end);
    to_.kept_rows[i] += static_cast<int32_t>(work.begin - 1 - s.drafts.kept_first);
  }
  for (int32_t j = 0; j < c.drafts; ++j) {
    const int32_t at = j * c.segments + i;
    const bool wanted = j < drafts;
    to_.draft_tokens[at] = wanted && j == 0 ? s.token(work.begin) : 0;
    to_.draft_sources[at] = wanted && j > 0 ? c.draft_entry(s.memory.slot, j - 1) : -1;
    to_.draft_samples[at] = wanted ? draft_row(s.request.sampling, work.begin + 1 + j, c.draft_entry(s.memory.slot, j))
                                   : SampleRow{.flags = kSampleIdle};
    const auto position = static_cast<int32_t>(work.begin + j - 1);
    add_coordinates(s, wanted ? position : 0, to_.draft_coordinates + 3 * int64_t{at});
    to_.draft_segments[at] = wanted ? Segment{.row = i,
                                              .count = 1,
                                              .position = position,
                                              .state_slot = s.memory.state_slot.v,
                                              .anchor = position}
                                    : Segment{};
  }
  shape_.draft_passes = std::max(shape_.draft_passes, drafts);
}

// The token after a row: of a prompt's it is known, but for the last one's; after others it is what they sample.
void StepWriter::add_follow(Sequence& s, const Work& work, bool decode, const SequenceRows& rows) {
  const StepCapacity& c = backend_.layout().capacity();
  const int64_t end = work.begin + work.count, known = decode ? work.begin : s.prompt_tokens() - 1;
  // Rows behind `known` have results one after the other, the last one of a prompt its only one.
  for (int32_t i = 0; i < work.count; ++i) {
    const int64_t position = work.begin + i;
    const bool sampled = position >= known && rows.logit_row >= 0;
    to_.next_tokens[shape_.rows + i] = sampled || position >= known ? 0 : s.token(position + 1);
    to_.next_sources[shape_.rows + i] = sampled ? rows.logit_row + static_cast<int32_t>(position - known) : -1;
  }
  shape_.follows = true;
  if (rows.logit_row < 0) return;
  const int64_t first = decode ? work.begin : end - 1;
  for (int64_t position = first; position < end; ++position)
    to_.keep[s.memory.slot * (c.drafts + 1) + static_cast<int32_t>(position - first)] =
        shape_.rows + static_cast<int32_t>(position - work.begin);
  s.drafts.kept_first = first;
  s.drafts.kept_end = end;
}

// The tokens of a prompt with penalties go into its history on the device chunk by chunk. What the prefix cache had of
// it goes there first, with the first chunk.
void StepWriter::add_history(Sequence& s, const Work& work) {
  if (!s.history_begun && s.prefix.cached > 0) {
    const auto count = static_cast<int32_t>(s.prefix.cached);
    const Status past = list_->past_updates.add(
        {.history = s.memory.slot, .begin = shape_.past_tokens, .count = count, .prompt = count, .reset = 1},
        backend_.layout().capacity().past);
    QUIRE_CHECK(past.ok(), "sequence {}: {}", s.id.v, past.error().message);
    std::copy_n(s.request.prompt.data(), count, to_.past_tokens + shape_.past_tokens);
    shape_.past_tokens += count;
    s.history_begun = true;
  }
  const Status added = list_->history_updates.add({.history = s.memory.slot,
                                                   .begin = shape_.rows,
                                                   .count = work.count,
                                                   .prompt = work.count,
                                                   .reset = s.history_begun ? 0 : 1},
                                                  shape_.rows + work.count);
  QUIRE_CHECK(added.ok(), "sequence {}: {}", s.id.v, added.error().message);
  s.history_begun = true;
}

// With penalties, a step that verifies drafts notes none of its tokens, because some may be rejected. Those that were
// committed go along with the sequence's rows from then on, and so do the drafts before each row; when they are many
// they are noted, all at once, by a step that is therefore no graph.
void StepWriter::add_unnoted(Sequence& s, int32_t drafts, SampleTarget& target) {
  if (std::ssize(s.unnoted) > kMostUnnoted - kMostDrafts) {
    const auto count = static_cast<int32_t>(s.unnoted.size());
    const Status noted = list_->past_updates.add(
        {.history = s.memory.slot, .begin = shape_.past_tokens, .count = count}, backend_.layout().capacity().past);
    QUIRE_CHECK(noted.ok(), "sequence {}: {}", s.id.v, noted.error().message);
    std::ranges::copy(s.unnoted, to_.past_tokens + shape_.past_tokens);
    shape_.past_tokens += count;
    s.unnoted.clear();
  }
  target.unnoted_count = static_cast<int32_t>(s.unnoted.size());
  const bool known = drafts > 0 && !s.drafts.by_mtp;
  if (!known) target.drafts_begin = backend_.layout().capacity().draft_entry(s.memory.slot, 0);
  if (target.unnoted_count == 0 && !known) return;
  const std::span<const TokenId> tokens = s.drafts.tokens;
  const Result<int32_t> begin =
      list_->samples.add_unnoted(s.unnoted, tokens.first(known ? static_cast<size_t>(drafts) : 0));
  QUIRE_CHECK(begin.ok(), "sequence {}: {}", s.id.v, begin.error().message);
  target.unnoted_begin = *begin;
}

// The last row of a prompt, or all rows of generated tokens: those behind the first one count if the drafts before them
// turn out to be what is sampled.
void StepWriter::add_sample(Sequence& s, const Work& work, bool decode, SequenceRows& rows) {
  rows.logit_row = shape_.logit_rows;
  rows.drafts = rows.usable = decode ? work.count - 1 : 0;
  const bool penalised = s.request.sampling.has_penalties();
  SampleTarget of_all;
  if (penalised && decode) add_unnoted(s, rows.drafts, of_all);
  // Behind a token that is not known yet, or a draft that is not, the grammar may begin.
  const bool unknown = s.pending > 0 || (rows.drafts > 0 && s.drafts.by_mtp);
  const bool masked = s.constraint != nullptr && (s.constraint->masked() || (unknown && s.constraint->depends()));
  if (masked) rows.mask = shape_.masks;
  for (int32_t i = decode ? 0 : work.count - 1; i < work.count; ++i) {
    const int64_t position = work.begin + i + 1;
    const bool tentative = decode && (i > 0 || (penalised && rows.drafts > 0));
    SampleTarget target = of_all;
    target.position = position;
    target.batch_slot = tentative ? -1 : s.memory.slot;
    target.history = penalised ? s.memory.slot : -1;
    target.tentative = tentative;
    target.forbidden = s.forbidden(position);
    target.mask = masked ? shape_.masks : -1;
    if (penalised && decode) (s.drafts.by_mtp ? target.drafts_count : target.unnoted_count) += i;
    if (masked) ++shape_.masks;
    const Status added = list_->samples.add(s.request.sampling, target);
    QUIRE_CHECK(added.ok(), "sequence {}: {}", s.id.v, added.error().message);
    to_.logit_rows[shape_.logit_rows++] = shape_.rows + i;
    if (decode) ++shape_.decode_logit_rows;
  }
}

// Which rows of a chunk an embedding is made of: all of them for a mean, else the prompt's last one.
void StepWriter::add_hidden(const Sequence& s, const Work& work, SequenceRows& rows) {
  const int32_t last = rows.prompt_end == s.prompt_tokens() ? 1 : 0;
  rows.hidden_row = shape_.hidden_rows;
  rows.hidden_count = pooling_ == Pooling::kMean ? work.count : last;
  for (int32_t i = work.count - rows.hidden_count; i < work.count; ++i)
    to_.hidden_rows[shape_.hidden_rows++] = shape_.rows + i;
}

// A row's logits tell of the token after it. That of a prompt's last row is not known yet.
void StepWriter::add_scores(const Sequence& s, const Work& work, SequenceRows& rows) {
  rows.scored_row = shape_.scored_rows;
  rows.scored_count = static_cast<int32_t>(std::min<int64_t>(work.count, s.prompt_tokens() - 1 - work.begin));
  for (int32_t i = 0; i < rows.scored_count; ++i) {
    to_.scored_rows[shape_.scored_rows] = shape_.rows + i;
    to_.score_rows[shape_.scored_rows++] = {.logprobs = s.request.prompt_logprobs,
                                            .target = s.request.prompt[static_cast<size_t>(work.begin + i + 1)]};
  }
}

StepShape StepWriter::end(const StepMoves& moves) {
  std::ranges::copy(moves.outs, to_.swap_outs);
  std::ranges::copy(moves.ins, to_.swap_ins);
  for (size_t i = 0; i < moves.state_copies.size(); ++i)
    to_.slot_copies[2 * i] = moves.state_copies[i].first, to_.slot_copies[2 * i + 1] = moves.state_copies[i].second;
  shape_.swap_outs = static_cast<int32_t>(moves.outs.size());
  shape_.swap_ins = static_cast<int32_t>(moves.ins.size());
  shape_.slot_copies = static_cast<int32_t>(moves.state_copies.size());
  shape_.history_updates = list_->history_updates.count();
  shape_.past_updates = list_->past_updates.count();
  shape_.biases = list_->samples.biases();
  return shape_;
}

}  // namespace quire
