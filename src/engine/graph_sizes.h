// The sizes that steps of generated tokens are rounded up to, so that few captured graphs serve all of them.
#pragma once

#include <vector>

#include "model/step.h"

namespace quire {

// A step of `rows` sequences with one generated token each, whose block tables are `width` blocks apart.
struct GraphSize {
  int32_t rows = 0, width = 0;
  auto operator<=>(const GraphSize&) const = default;
};

// Rows with the padding that they get: an eighth at most, from 16 rows on.
int32_t graph_rows(int32_t rows, const StepCapacity& capacity);
// The pitch of block tables for sequences of up to `blocks` blocks: a power of two, 16 at least, or all there can be.
int32_t table_width(int32_t blocks, const StepCapacity& capacity);
// All that such steps can come to, the largest first.
std::vector<GraphSize> graph_sizes(const StepCapacity& capacity);

}  // namespace quire
