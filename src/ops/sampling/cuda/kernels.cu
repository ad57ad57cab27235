#include "ops/sampling/cuda/kernels.h"

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/sampling/cuda/sample.h"

namespace quire::cuda {

bool sample_fits(const Machine&, const SampleArgs& a) {
  return a.logits.dim(1) <= kMaxSampleVocab && aligned_rows(a.logits, 4) && a.out.top_ids.dim(1) <= kMaxSampleTop;
}

void sample(const OpContext& ctx, const SampleArgs& a) {
  Context& c = context_of(ctx);
  const int32_t rows = narrow(a.logits.dim(0)), vocab = narrow(a.logits.dim(1));
  Workspace::Scope scope(ctx.workspace);
  std::byte* const scratch = scope.take<std::byte>(sample_workspace_bytes(rows, vocab));
  if (c.dry) return;
  c.keep(launch_sample(c.stream,
                       {.logits = floats(a.logits),
                        .logits_stride = a.logits.stride[0],
                        .rows = rows,
                        .vocab = vocab,
                        .row = a.rows,
                        .bias_ids = a.bias_ids,
                        .bias_values = a.bias_values,
                        .suppressed = a.suppressed,
                        .suppressed_count = a.suppressed_count,
                        .masks = a.masks,
                        .ids = a.ids,
                        .history = a.history,
                        .tokens = data<int32_t>(a.out.tokens),
                        .logprobs = data<float>(a.out.logprobs),
                        .top_ids = data<int32_t>(a.out.top_ids),
                        .top_logprobs = data<float>(a.out.top_logprobs),
                        .top_count = data<int32_t>(a.out.top_count),
                        .ranks = a.out.ranks.empty() ? nullptr : data<int32_t>(a.out.ranks),
                        .max_top = narrow(a.out.top_ids.dim(1)),
                        .sampled = a.out.sampled.empty() ? nullptr : data<int32_t>(a.out.sampled)},
                       scratch));
}

void update_history(const OpContext& ctx, const UpdateHistoryArgs& a) {
  Context& c = context_of(ctx);
  if (c.dry) return;
  c.keep(launch_update_history(
      c.stream, {.tokens = a.tokens, .ranges = a.ranges, .range_count = a.range_count, .history = a.history}));
}

}  // namespace quire::cuda
