#include "engine/step_writer.h"

#include <algorithm>

#include "engine/graph_sizes.h"

namespace quire {

StepWriter::StepWriter(Backend& backend, const EngineOptions& options, const ModelConfig& model)
    : backend_(backend), pooling_(options.pooling) {
  const StepCapacity& c = backend.layout().capacity();
  const SampleLimits limits{.vocab = model.vocab,
                            .batch_slots = c.batch_slots,
                            .histories = c.batch_slots,
                            .max_top = c.max_top,
                            .max_bias = options.max_logit_bias};
  const auto biases = static_cast<size_t>(c.biases), segments = static_cast<size_t>(c.segments);
  for (int i = 0; i < kMostDepth; ++i) {
    const StepLayout::Arrays a = backend.layout().arrays(backend.staging(i));
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
  for (const Work& w : plan.work) shape_.longest = std::max(shape_.longest, static_cast<int32_t>(w.begin + w.count));
  const int32_t blocks = (shape_.longest + kBlockTokens - 1) / kBlockTokens;
  shape_.table_width = table_width(blocks, backend_.layout().capacity());
}

Segment StepWriter::add(Sequence& s, const Work& work, bool decode, SequenceRows& rows) {
  const int64_t end = work.begin + work.count;
  const Segment segment{.row = shape_.rows,
                        .count = work.count,
                        .position = static_cast<int32_t>(work.begin),
                        .state_slot = s.memory.state_slot.v,
                        .anchor = s.memory.anchor};
  to_.segments[shape_.segments] = segment;
  std::copy_n(s.memory.table.data(), s.memory.table.blocks().size(),
              to_.tables + int64_t{shape_.segments} * shape_.table_width);
  add_tokens(s, work);
  if (!decode && s.request.sampling.has_penalties()) add_history(s, work);
  if (!decode) rows.prompt_end = end;
  if (!decode && s.results.logprobs != nullptr) add_scores(s, work, rows);
  if (s.request.embed) add_hidden(s, work, rows);
  if (end >= s.prompt_tokens() && s.request.max_tokens > 0) add_sample(s, work, decode, rows);
  ++shape_.segments;
  shape_.rows += work.count;
  if (decode) shape_.decode_rows += work.count, ++shape_.decodes, shape_.decode_keys += end;
  return segment;
}

// Tokens that are not committed yet are what this sequence's batch slot sampled in the step before.
void StepWriter::add_tokens(const Sequence& s, const Work& work) {
  for (int32_t i = 0; i < work.count; ++i) {
    const int64_t position = work.begin + i;
    const bool known = position < s.committed();
    to_.tokens[shape_.rows + i] = known ? s.token(position) : 0;
    to_.sources[shape_.rows + i] = known ? -1 : s.memory.slot;
  }
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

void StepWriter::add_sample(const Sequence& s, const Work& work, bool decode, SequenceRows& rows) {
  const int64_t position = work.begin + work.count;
  const SampleTarget target{.position = position,
                            .batch_slot = s.memory.slot,
                            .history = s.request.sampling.has_penalties() ? s.memory.slot : -1,
                            .tentative = false,
                            .forbidden = s.forbidden(position)};
  const Status added = list_->samples.add(s.request.sampling, target);
  QUIRE_CHECK(added.ok(), "sequence {}: {}", s.id.v, added.error().message);
  rows.logit_row = shape_.logit_rows;
  to_.logit_rows[shape_.logit_rows++] = shape_.rows + work.count - 1;
  if (decode) ++shape_.decode_logit_rows;
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
