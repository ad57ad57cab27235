#include "engine/graph_sizes.h"

#include <algorithm>
#include <bit>

#include "ops/attention/parts.h"

namespace quire {
namespace {

int32_t most_rows(const StepCapacity& c) {
  return std::min(c.rows, c.segments);
}

}  // namespace

int64_t most_keys(const StepCapacity& c, int64_t keys, int32_t rows) {
  return c.parts == 0 ? keys : std::min(keys, c.parts / rows * kPartKeys);
}

int32_t graph_rows(int32_t rows, const StepCapacity& c) {
  int32_t n = 1;
  while (n < rows) n += n < 4 ? n : std::max(4, static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(n))) / 8);
  return std::min(n, most_rows(c));
}

GraphSize size_of(const StepShape& s) {
  return {.sequences = s.decodes, .width = s.table_width, .each = s.most_rows, .passes = s.draft_passes};
}

StepShape shape_of(const GraphSize& size, const StepCapacity& c) {
  StepShape s{.rows = size.sequences * size.each, .table_width = size.width};
  s.segments = s.decodes = size.sequences;
  s.decode_rows = s.logit_rows = s.decode_logit_rows = s.rows;
  s.decode_keys = most_keys(c, int64_t{size.sequences} * size.width * kBlockTokens, size.each);
  s.most_rows = size.each;
  s.draft_passes = size.passes;
  s.follows = c.drafts > 0;
  return s;
}

StepShape pad_step(const StepLayout& layout, std::byte* base, const StepShape& shape) {
  const StepArrays a = layout.arrays(base);
  const StepCapacity& c = layout.capacity();
  const int32_t each = shape.most_rows;
  int32_t sequences = graph_rows(shape.decodes, c);
  if (sequences * each > std::min(c.rows, c.logit_rows)) sequences = shape.decodes;
  for (int32_t i = shape.rows; i < sequences * each; ++i) {
    a.tokens[i] = 0;
    a.sources[i] = a.logit_rows[i] = -1;
    a.sample_rows[i] = {.flags = kSampleIdle};
    if (c.drafts > 0) a.next_tokens[i] = 0, a.next_sources[i] = -1;
  }
  for (int32_t i = shape.decodes; i < sequences; ++i) {
    a.segments[i] = {};
    if (c.drafts > 0) a.draft_rows[i] = i, a.kept_rows[i] = 0;
    for (int32_t j = 0; j < shape.draft_passes; ++j) {
      const int64_t at = int64_t{j} * c.segments + i;
      a.draft_segments[at] = {};
      a.draft_tokens[at] = 0;
      a.draft_sources[at] = -1;
      a.draft_samples[at] = {.flags = kSampleIdle};
    }
  }
  GraphSize size = size_of(shape);
  size.sequences = sequences;
  StepShape s = shape_of(size, c);
  s.biases = shape.biases;
  s.longest = shape.longest;
  return s;
}

bool replayable(const StepShape& s) {
  return s.rows > 0 && s.rows == s.decodes * s.most_rows && s.segments == s.decodes && s.logit_rows == s.rows &&
         s.slot_copies == 0 && s.history_updates == 0 && s.past_updates == 0;
}

std::vector<StepShape> largest_steps(const StepCapacity& c, int32_t most_drafts) {
  StepShape prompts{.rows = c.rows, .segments = std::max(1, c.segments), .logit_rows = c.logit_rows};
  prompts.hidden_rows = c.hidden_rows;
  prompts.scored_rows = c.scored_rows;
  prompts.table_width = c.table_width;
  prompts.follows = c.drafts > 0;
  std::vector<StepShape> all = {prompts};
  for (int32_t each = 1; each <= 1 + most_drafts; ++each) {
    StepShape s = prompts;
    s.decodes = c.segments;
    s.decode_rows = s.decode_logit_rows = c.logit_rows;
    s.most_rows = each;
    s.draft_passes = c.drafts;
    s.decode_keys = most_keys(c, int64_t{c.segments} * c.table_width * kBlockTokens, each);
    all.push_back(s);
  }
  return all;
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
