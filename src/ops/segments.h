// Which rows of a step belong to which sequence: arrays of plain data in the memory of the device that reads them.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr int kBlockTokens = 16;  // tokens per KV block
inline constexpr int kChunkTokens = 64;  // the grid of prefill chunks and delta-net chunks
inline constexpr int kWindowTokens =
    16;  // a recurrent state is written at multiples of this position while decoding

// One sequence's part of a step: rows [row, row + count) are its tokens at positions [position, position + count).
// Segments do not overlap; rows that no segment mentions are padding, and so is a segment without rows.
struct Segment {
  int32_t row = 0;
  int32_t count = 0;
  int32_t position = 0;
  int32_t state_slot = -1;  // recurrent state of the sequence (hybrid models)
  int32_t anchor = 0;       // decode: S0 of the slot is the state after this many tokens; the tokens
                            // [anchor, position), at most 16 + drafts, are in its window
  int32_t tentative =
      0;  // of the rows, the last ones that may yet be rejected (drafts): never folded into S0
};

// The segments of a step and their block tables. Decode segments come first, and their rows before all others.
//   segment i: decode if i < decodes, else a prompt chunk
//   the KV block of positions [16 j, 16 j + 16) of segment i is tables[i * pitch + j]; entries beyond its last
//   position may hold anything
struct SegmentArray {
  const Segment* data = nullptr;
  int32_t count = 0;
  int32_t decodes = 0;
  const int32_t* tables = nullptr;
  int32_t pitch = 0;
};

}  // namespace quire
