#include "engine/graph_sizes.h"

#include <algorithm>
#include <bit>

namespace quire {
namespace {

int32_t most_rows(const StepCapacity& c) {
  return std::min(c.rows, c.segments);
}

}  // namespace

int32_t graph_rows(int32_t rows, const StepCapacity& c) {
  int32_t n = 1;
  while (n < rows) n += n < 4 ? n : std::max(4, static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(n))) / 8);
  return std::min(n, most_rows(c));
}

int32_t table_width(int32_t blocks, const StepCapacity& c) {
  return std::min(static_cast<int32_t>(std::max(16u, std::bit_ceil(static_cast<uint32_t>(blocks)))), c.table_width);
}

std::vector<GraphSize> graph_sizes(const StepCapacity& c) {
  std::vector<GraphSize> all;
  for (int32_t rows = 0; rows < most_rows(c);) {
    rows = graph_rows(rows + 1, c);
    for (int32_t width = 0; width < c.table_width;) {
      width = table_width(width + 1, c);
      all.push_back({rows, width});
    }
  }
  std::sort(all.begin(), all.end(), [](const GraphSize& a, const GraphSize& b) { return b < a; });
  return all;
}

}  // namespace quire
