#include "engine/compute_step.h"

#include "core/workspace.h"
#include "ops/copy/copy.h"
#include "ops/sampling/history.h"

namespace quire {

void compute_step(const OpContext& ctx, const Model& model, const StepBatch& batch,
                  const ForwardOptions& options, const StepMemory& memory) {
  const int64_t rows = batch.shape.logit_rows, vocab = model.config().vocab;
  copy_slots(ctx, {.pool = memory.cache.blocks(), .pairs = batch.block_copies});
  note_tokens(ctx, {.tokens = batch.tokens.as<int32_t>(),
                    .token_count = batch.shape.rows,
                    .ranges = batch.notes,
                    .range_count = batch.shape.notes,
                    .history = memory.history});
  Workspace::Scope scope(ctx.workspace);
  const Tensor logits = make_tensor(scope.take<float>(rows * vocab), {rows, vocab});
  model.forward(ctx, batch, memory.cache, options, logits);
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
