// The walk of a fast paged_attention kernel over keys and rows, included by one file per instruction set (all
// names have internal linkage). Online softmax: per group of kGroupKeys keys and tile of rows
//
//   stage:      value blocks to where accumulate() wants them
//   scores:     S = Q K^T                               all keys that any row of the tile sees
//   softmax:    m' = max(m, scale log2(e) S);  p = 2^(scale log2(e) S - m');  p = 0 for keys past the row
//               sums *= 2^(m - m');  total = total 2^(m - m') + sum p
//   accumulate: sums += P V
//
// Groups are cut at absolute positions and a row does the same operations in the same order whatever shares
// its tile: a key past the row contributes p = 0 exactly, and adding 0 changes nothing but the sign of a zero
// or (matrix units) a denormal, which finish() removes.
#pragma once

#include "ops/attention/kernels.h"

namespace quire::attention {
namespace {

constexpr float kLog2e = 1.44269504088896340736f;

constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// How many of the `seen` keys from `key` on row r may look at: 0 or less when all lie beyond it.
inline int64_t own_keys(const RowTask& t, int64_t r, int64_t key, int64_t seen) {
  return smaller(seen, t.position + r / t.group + 1 - key);
}

template <class Isa>
void walk(const RowTask& t, const TaskScratch& s) {
  Isa isa(t, s);
  const int64_t rows = t.tokens * t.group, keys_end = t.position + t.tokens;
  const float scale = t.scale * kLog2e;
  // Row r is head r % group of token r / group; divisions are slow, so loops count.
  for (int64_t token = 0, r = 0; token < t.tokens; ++token)
    for (int64_t head = 0; head < t.group; ++head, ++r) {
      isa.load_query(r, t.q + token * t.q_token + head * t.q_head);
      s.max[r] = -__builtin_inff();
      s.total[r] = 0.0f;
    }
  // With one tile of rows nothing is used twice: stage little, and use it while it is near.
  const int64_t staged = rows > Isa::kTileRows ? kStagedKeys : kGroupKeys;
  for (int64_t begin = 0; begin < keys_end; begin += staged) {
    const int64_t end = smaller(begin + staged, keys_end);
    isa.stage_values(begin, end - begin);
    for (int64_t row = 0; row < rows; row += Isa::kTileRows) {
      const int64_t count = smaller(Isa::kTileRows, rows - row);
      const int64_t last = t.position + (row + count - 1) / t.group;  // position of the tile's last row
      for (int64_t key = begin; key < smaller(end, last + 1); key += kGroupKeys) {
        const int64_t seen = smaller(kGroupKeys, last + 1 - key);
        isa.scores(row, count, key, seen);
        isa.softmax(row, count, key, seen, scale);
        isa.accumulate(row, count, key - begin, seen, key == 0);
      }
    }
  }
  for (int64_t token = 0, r = 0; token < t.tokens; ++token)
    for (int64_t head = 0; head < t.group; ++head, ++r)
      Isa::finish(s.sums + r * s.pitch, 1.0f / s.total[r],
                  t.gate == nullptr ? nullptr : t.gate + token * t.gate_token + head * t.gate_head,
                  t.out + token * t.out_token + head * t.d, t.d);
  isa.end();
}

}  // namespace
}  // namespace quire::attention
