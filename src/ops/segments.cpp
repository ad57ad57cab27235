#include "ops/segments.h"

#include "core/result.h"

namespace quire {

void check_segments(const SegmentArray& segments, int64_t rows, int64_t blocks, int64_t slots) {
  int64_t next = 0;
  for (int32_t i = 0; i < segments.count; ++i) {
    const Segment& s = segments.data[i];
    if (s.count == 0) continue;
    const bool decode = i < segments.decodes;
    QUIRE_CHECK(s.count > 0 && s.row >= next && int64_t{s.row} + s.count <= rows && s.position >= 0,
                "segment {}: rows {} + {} of {}, from {} on, at position {}", i, s.row, s.count, rows, next,
                s.position);
    next = int64_t{s.row} + s.count;
    QUIRE_CHECK(slots == 0 || (s.state_slot >= 0 && s.state_slot < slots), "segment {}: state slot {} of {}", i,
                s.state_slot, slots);
    QUIRE_CHECK(decode || slots == 0 || s.position % kChunkTokens == 0,
                "segment {}: a prompt chunk begins at position {}, not on the grid of {}", i, s.position, kChunkTokens);
    QUIRE_CHECK(s.anchor >= 0 && s.anchor <= s.position && s.tentative >= 0 && s.tentative <= s.count &&
                    (decode || s.anchor == s.position),
                "segment {}: a state after {} tokens at position {}, {} of {} rows tentative", i, s.anchor, s.position,
                s.tentative, s.count);
    const int64_t used = (int64_t{s.position} + s.count + kBlockTokens - 1) / kBlockTokens;
    QUIRE_CHECK(used <= segments.pitch, "segment {}: {} blocks in a table of {}", i, used, segments.pitch);
    const int32_t* const table = segments.table(s);
    for (int64_t j = 0; j < used; ++j)
      QUIRE_CHECK(table[j] >= 0 && table[j] < blocks, "segment {}: block {} is {} of {}", i, j, table[j], blocks);
  }
}

}  // namespace quire
