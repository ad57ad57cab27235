// Which rows of a step belong to which sequence: arrays of plain data in the memory of the device that reads them.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr int kBlockTokens = 16;    // tokens per KV block
inline constexpr int kChunkTokens = 64;    // the grid of prefill chunks and delta-net chunks
inline constexpr int kPendingTokens = 16;  // a recurrent state is written at multiples of this position while decoding

// Drafts of one sequence in one step, at most: a segment of generated tokens has a row more. Kernels of these segments
// count on it.
inline constexpr int32_t kMostDrafts = 7;

// One sequence's part of a step: rows [row, row + count) are its tokens at positions [position, position + count).
// Segments do not overlap; rows that no segment mentions are padding, and so is a segment without rows.
struct Segment {
  int32_t row = 0;
  int32_t count = 0;
  int32_t position = 0;
  int32_t state_slot = -1;  // recurrent state of the sequence (hybrid models)
  int32_t anchor = 0;       // decode: S0 of the slot is the state after this many tokens; the tokens
                            // [anchor, position), at most 16 + drafts, are pending
  int32_t tentative = 0;    // of the rows, the last ones that may yet be rejected (drafts): never folded into S0
};

// Segment::anchor of the sequence's next segment: host and kernels follow the same rule. Not for segments without rows.
//   decode: S0 is written at multiples of kPendingTokens, and never includes a row that may be rejected
//   prompt: S0 is written after the last row
constexpr int32_t anchor_after_decode(const Segment& s) {
  const int32_t settled = (s.position + s.count - s.tentative) / kPendingTokens * kPendingTokens;
  return settled > s.anchor ? settled : s.anchor;
}
constexpr int32_t anchor_after_prompt(const Segment& s) {
  return s.position + s.count;
}

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
  // What the host knows, for sizing grids: bounds of what the arrays hold.
  int32_t decode_rows = 0;  // rows of all decode segments
  int32_t prompt_rows = 0;  // rows of all prompt segments
  int64_t decode_keys = 0;  // positions of all decode segments after the step, added up
  int32_t most_rows = 1;    // rows of a decode segment at most: those of a generated token and its drafts

  // The two kinds apart. Tables stay with their segments.
  SegmentArray decoding() const {
    return {data, decodes, decodes, tables, pitch, decode_rows, 0, decode_keys, most_rows};
  }
  SegmentArray prompts() const {
    return {data + decodes, count - decodes, 0, tables + decodes * int64_t{pitch}, pitch, 0, prompt_rows};
  }
  // On the host, for memory that it can read.
  const Segment* begin() const { return data; }
  const Segment* end() const { return data + count; }
  const int32_t* table(const Segment& s) const { return tables + (&s - data) * int64_t{pitch}; }
};

// Whether the values of a step's segments make sense, once, on the host, where they are laid out: rows of `rows`, in
// order and apart, blocks of `blocks`, slots of `slots` (0: none are needed, and prompts need not stand on the grid of
// 64). What does not is a mistake of ours, and fatal.
void check_segments(const SegmentArray& segments, int64_t rows, int64_t blocks, int64_t slots);

}  // namespace quire
