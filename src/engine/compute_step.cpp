#include "engine/compute_step.h"

#include <algorithm>
#include <functional>

#include "core/workspace.h"
#include "ops/copy/copy.h"
#include "ops/rows/rows.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

void check_pairs(const char* what, const int32_t* pairs, int32_t count, int64_t from, int64_t to) {
  for (int32_t i = 0; i < count; ++i)
    QUIRE_CHECK(pairs[2 * i] >= 0 && pairs[2 * i] < from && pairs[2 * i + 1] >= 0 && pairs[2 * i + 1] < to,
                "{} {}: {} of {} to {} of {}", what, i, pairs[2 * i], from, pairs[2 * i + 1], to);
}

void check_moves(const char* what, const HostMove* moves, int32_t count, const CopyLimits& l) {
  for (int32_t i = 0; i < count; ++i) {
    const HostMove& m = moves[i];
    const bool state = m.piece >= 0;
    QUIRE_CHECK(m.device >= 0 && m.device < (state ? l.slots : l.blocks) && m.page >= 0 && m.page < l.pages &&
                    (!state || m.piece * l.block_bytes < l.state_bytes),
                "{} {}: {} {}, piece {}, page {} of {}", what, i, state ? "state" : "block", m.device, m.piece, m.page,
                l.pages);
  }
}

}  // namespace

MoveBytes bytes_of(const HostMove& m, const MoveUnits& u) {
  if (m.piece < 0) return {false, m.device * u.block, m.page * u.page, u.block};
  const int64_t begin = std::min(m.piece * u.page, u.state);
  return {true, m.device * u.state + begin, m.page * u.page, std::min(u.page, u.state - begin)};
}

void check_copies(const StepArrays& a, const StepShape& shape, const CopyLimits& limits) {
  check_pairs("copy of state", a.slot_copies, shape.slot_copies, limits.slots, limits.slots);
  check_moves("move to the host", a.swap_outs, shape.swap_outs, limits);
  check_moves("move from the host", a.swap_ins, shape.swap_ins, limits);
}

void check_ends(const SegmentArray& segments, const int32_t* ends) {
  for (int32_t i = 0; i < segments.count; ++i) {
    const Segment& s = segments.data[i];
    int32_t last = 0;
    for (int32_t j = 0; j < s.count; ++j) {
      const int32_t own = s.position + j + 1, end = std::max(own, ends[s.row + j]);
      QUIRE_CHECK(end >= last && end <= s.position + s.count && (i >= segments.decodes || end == own),
                  "segment {}: row {} at position {} attends to positions below {}, the one before it below {}", i, j,
                  own - 1, end, last);
      last = end;
    }
  }
}

namespace {

// Rows [first, first + count) of outputs.
SampleOutputs rows_of(const SampleOutputs& out, int64_t first, int64_t count) {
  SampleOutputs part = out;
  for (Tensor* const t :
       {&part.tokens, &part.logprobs, &part.top_ids, &part.top_logprobs, &part.top_count, &part.ranks})
    *t = t->rows(first, count);
  return part;
}

// One pass of the multi-token-prediction block for each draft, with the one before it.
void make_drafts(const OpContext& ctx, const Decoder& mtp, const StepShape& shape, const DraftBatch& drafts,
                 const ForwardOptions& options, const StepMemory& memory) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t rows = shape.decodes, d = mtp.config().d_model, vocab = mtp.config().vocab;
  const int64_t pitch = logits_pitch(vocab);
  const Tensor logits = make_tensor(scope.take<float>(rows * pitch), {rows, pitch}).cols(0, vocab);
  // A pass reads the hidden states of the one before it while it writes its own.
  const Tensor hidden[] = {make_tensor(scope.take<float>(rows * d), {rows, d}),
                           make_tensor(scope.take<float>(rows * d), {rows, d})};
  const SampleOutputs out{.tokens = make_tensor(scope.take<int32_t>(rows), {rows}),
                          .logprobs = make_tensor(scope.take<float>(rows), {rows}),
                          .top_ids = make_tensor(scope.take<int32_t>(rows), {rows, 0}),
                          .top_logprobs = make_tensor(scope.take<float>(rows), {rows, 0}),
                          .top_count = make_tensor(scope.take<int32_t>(rows), {rows}),
                          .ranks = {},
                          .sampled = drafts.passes[0].sampled};
  gather_rows(ctx, {.x = memory.kept, .rows = drafts.kept_rows, .y = hidden[1]});
  for (int32_t j = 0; j < shape.draft_passes; ++j) {
    StepBatch pass = drafts.passes[j];
    pass.hidden = hidden[(j + 1) % 2];
    mtp.forward(ctx, pass, memory.cache, {.latency = options.latency}, {.logits = logits, .states = hidden[j % 2]});
    sample(ctx, {.logits = logits, .rows = pass.arrays.sample_rows, .ids = mtp.head_tokens(), .out = out});
  }
}

// Shows the block the step's rows with what follows them, and keeps the hidden states that the next drafts begin with.
void follow(const OpContext& ctx, const Decoder& mtp, const DraftBatch& drafts, const Tensor& states,
            const ForwardOptions& options, const StepMemory& memory) {
  gather_rows(ctx, {.x = states, .rows = drafts.keep, .y = memory.kept});
  StepBatch rows = drafts.follow;
  rows.hidden = states;
  mtp.forward(ctx, rows, memory.cache, {.latency = options.latency, .caches_only = true}, {});
}

// What comes before the pass.
void begin_step(const OpContext& ctx, const StepDecoders& decoders, const StepBatch& batch, const DraftBatch& drafts,
                const ForwardOptions& options, const StepMemory& memory) {
  const bool has_states = state_pool(memory.cache.pools()) >= 0;
  if (has_states || batch.shape.slot_copies == 0)  // else another device has all of them
    copy_slots(ctx, {.pool = memory.cache.states(), .pairs = batch.slot_copies()});
  if (!decoders.model.ends()) return;
  update_history(ctx, {.tokens = batch.arrays.past_tokens,
                       .token_count = batch.shape.past_tokens,
                       .ranges = batch.arrays.past_updates,
                       .range_count = batch.shape.past_updates,
                       .history = memory.history});
  update_history(ctx, {.tokens = batch.arrays.tokens,
                       .token_count = batch.shape.rows,
                       .ranges = batch.arrays.history_updates,
                       .range_count = batch.shape.history_updates,
                       .history = memory.history});
  if (batch.shape.draft_passes > 0) make_drafts(ctx, *decoders.mtp, batch.shape, drafts, options, memory);
}

void sample_rows(const OpContext& ctx, const StepBatch& batch, const Tensor& logits, const StepMemory& memory) {
  SampleArgs args{.logits = logits,
                  .rows = batch.arrays.sample_rows,
                  .bias_ids = batch.arrays.bias_ids,
                  .bias_values = batch.arrays.bias_values,
                  .suppressed = memory.suppressed.data(),
                  .suppressed_count = static_cast<int32_t>(memory.suppressed.size()),
                  .masks = batch.arrays.masks,
                  .history = memory.history,
                  .out = memory.out};
  args.out.sampled = batch.sampled;
  sample(ctx, args);
}

}  // namespace

void compute_step(const OpContext& ctx, const StepDecoders& decoders, const StepBatch& batch, const DraftBatch& drafts,
                  const ForwardOptions& options, const StepMemory& memory, StepPart part) {
  const Decoder& model = decoders.model;
  const int64_t rows = batch.shape.logit_rows, vocab = model.config().vocab, d = model.config().d_model;
  if (part == StepPart::kAll || part == StepPart::kBegin) begin_step(ctx, decoders, batch, drafts, options, memory);
  if (batch.shape.rows == 0 || part == StepPart::kBegin) return;  // copies alone
  if (!model.ends()) return model.forward(ctx, batch, memory.cache, options, {});
  // What pass and sampling use comes first in the workspace, in one order.
  Workspace::Scope scope(ctx.workspace);
  const int64_t pitch = logits_pitch(vocab);
  const Tensor logits = make_tensor(scope.take<float>(rows * pitch), {rows, pitch}).cols(0, vocab);
  Tensor states;
  if (batch.shape.follows) states = make_tensor(scope.take<float>(batch.shape.rows * d), {batch.shape.rows, d});
  if (part != StepPart::kSampling) {
    const auto look_up = [&](int64_t first, const Tensor& slice) {
      sample(ctx, {.logits = slice,
                   .rows = batch.arrays.score_rows + first,
                   .out = rows_of(memory.scored, first, slice.dim(0))});
    };
    const ScoredLogits score = std::cref(look_up);  // a copy would allocate in every step
    model.forward(ctx, batch, memory.cache, options,
                  {.logits = logits, .hidden = memory.hidden, .states = states, .scored = &score});
  }
  if (part == StepPart::kPass) return;
  if (rows > 0) sample_rows(ctx, batch, logits, memory);
  if (batch.shape.follows) follow(ctx, *decoders.mtp, drafts, states, options, memory);
}

}  // namespace quire
