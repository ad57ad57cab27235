// The sizes that steps of generated tokens are rounded up to, so that few captured graphs serve all of them.
#pragma once

#include <vector>

#include "engine/compute_step.h"
#include "model/step.h"

namespace quire {

// A step of so many sequences with generated tokens, whose block tables are `width` blocks apart.
struct GraphSize {
  int32_t sequences = 0, width = 0;
  int32_t each = 1;    // rows of each: a token and its drafts, or padding
  int32_t passes = 0;  // of the multi-token-prediction block, for drafts
  StepPart part = StepPart::kAll;
  auto operator<=>(const GraphSize&) const = default;
};

// Positions of all sequences with generated tokens together, so many rows of each, where they have no more than `keys`.
int64_t most_keys(const StepCapacity& capacity, int64_t keys, int32_t rows);
// Rows with the padding that they get: an eighth at most, from 16 rows on.
int32_t graph_rows(int32_t rows, const StepCapacity& capacity);
// The pitch of block tables for sequences of up to `blocks` blocks: a power of two, 16 at least, or all there can be.
int32_t table_width(int32_t blocks, const StepCapacity& capacity);
GraphSize size_of(const StepShape& shape);
// The step that a graph of that size is captured of, with the most keys that such a step may have.
StepShape shape_of(const GraphSize& size, const StepCapacity& capacity);
// Adds padding to a step of generated tokens alone, `shape.most_rows` of each sequence, that lies at `base`, so that
// few graphs serve all: as many sequences as graph_rows() says. What it is then.
StepShape pad_step(const StepLayout& layout, std::byte* base, const StepShape& shape);

// Whether a step may be one that was captured: of generated tokens alone, as many rows of each sequence, all of them
// sampled. Its launches depend on few numbers.
bool replayable(const StepShape& shape);

// What no step takes more scratch memory than: all sequences read prompts, or all generate, with any number of drafts
// up to `most_drafts`. What operators take grows with the rows of either kind, with the segments and with the rows of
// the longest one; rows of generated tokens, which have kernels of their own, are computed by themselves; and keys are
// fewer where each sequence has more rows.
std::vector<StepShape> largest_steps(const StepCapacity& capacity, int32_t most_drafts);

// All that such steps without drafts can come to, the largest first.
std::vector<GraphSize> graph_sizes(const StepCapacity& capacity);

}  // namespace quire
