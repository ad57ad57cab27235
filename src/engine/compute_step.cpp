#include "engine/compute_step.h"

#include "core/workspace.h"
#include "ops/copy/copy.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

void check_pairs(const char* what, const int32_t* pairs, int32_t count, int64_t from, int64_t to) {
  for (int32_t i = 0; i < count; ++i)
    QUIRE_CHECK(pairs[2 * i] >= 0 && pairs[2 * i] < from && pairs[2 * i + 1] >= 0 && pairs[2 * i + 1] < to,
                "{} {}: {} of {} to {} of {}", what, i, pairs[2 * i], from, pairs[2 * i + 1], to);
}

}  // namespace

void check_copies(const StepLayout::Arrays& a, const StepShape& shape, const CopyLimits& limits) {
  check_pairs("copy of block", a.block_copies, shape.block_copies, limits.blocks, limits.blocks);
  check_pairs("copy of state", a.slot_copies, shape.slot_copies, limits.slots, limits.slots);
  check_pairs("block to the host", a.swap_outs, shape.swap_outs, limits.blocks, limits.host_blocks);
  check_pairs("block from the host", a.swap_ins, shape.swap_ins, limits.host_blocks, limits.blocks);
}

void compute_step(const OpContext& ctx, const Model& model, const StepBatch& batch,
                  const ForwardOptions& options, const StepMemory& memory) {
  const int64_t rows = batch.shape.logit_rows, vocab = model.config().vocab;
  copy_slots(ctx, {.pool = memory.cache.blocks(), .pairs = batch.block_copies});
  copy_slots(ctx, {.pool = memory.cache.slots(), .pairs = batch.slot_copies});
  note_tokens(ctx, {.tokens = batch.past_tokens,
                    .token_count = batch.shape.past_tokens,
                    .ranges = batch.past_notes,
                    .range_count = batch.shape.past_notes,
                    .history = memory.history});
  note_tokens(ctx, {.tokens = batch.tokens.as<int32_t>(),
                    .token_count = batch.shape.rows,
                    .ranges = batch.notes,
                    .range_count = batch.shape.notes,
                    .history = memory.history});
  if (batch.shape.rows == 0) return;  // copies alone
  Workspace::Scope scope(ctx.workspace);
  const Tensor logits = make_tensor(scope.take<float>(rows * vocab), {rows, vocab});
  model.forward(ctx, batch, memory.cache, options, {.logits = logits, .hidden = memory.hidden});
  if (rows == 0) return;
  SampleArgs args{.logits = logits,
                  .rows = batch.sample_rows,
                  .bias_ids = batch.bias_ids,
                  .bias_values = batch.bias_values,
                  .suppressed = memory.suppressed.data(),
                  .suppressed_count = static_cast<int32_t>(memory.suppressed.size()),
                  .history = memory.history,
                  .out = memory.out};
  args.out.sampled = batch.sampled;
  sample(ctx, args);
}

}  // namespace quire
