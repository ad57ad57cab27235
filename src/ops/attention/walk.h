// The walk of a fast paged_attention kernel over keys and rows, included by one file per instruction set (all
// names have internal linkage). Online softmax: per group of kGroupKeys keys and tile of rows
//
//   stage:      value blocks to where accumulate() wants them
//   scores:     S = Q K^T                               all keys that any row of the tile sees
//   softmax:    m' = max(m, scale log2(e) S);  p = 2^(scale log2(e) S - m');  p = 0 for keys past the row, or before
//               its window
//               sums *= 2^(m - m');  total = total 2^(m - m') + sum p
//   accumulate: sums += P V
//
// and, once for a row, load_query before and finish after all groups. softmax calls beside(r) once for every
// row.
//
// Groups are cut at absolute positions and a row does the same operations in the same order whatever shares
// its tile: a key past the row contributes p = 0 exactly, and adding 0 changes nothing but the sign of a zero
// or (matrix units) a denormal, which finish() removes.
#pragma once

#include "ops/attention/kernels.h"
#include "ops/simd/prefetch.h"

namespace quire::attention {
namespace {

constexpr float kLog2e = 1.44269504088896340736f;

constexpr int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// How many of the `seen` keys from `key` on row r may look at: 0 or less when all lie beyond it.
inline int64_t own_keys(const RowTask& t, int64_t r, int64_t key, int64_t seen) {
  return smaller(seen, t.end_of(r / t.group) - key);
}

// How many of the keys from `key` on lie before row r's window.
inline int64_t keys_before(const RowTask& t, int64_t r, int64_t key) {
  const int64_t before = t.first_key(t.position + r / t.group) - key;
  return before > 0 ? before : 0;
}

// What walk() does once for each row of a task, a tile of rows at a time. Row r is head r % group of token
// r / group.
template <class Isa>
struct TileRows {
  const RowTask& t;
  const TaskScratch& s;

  void begin(Isa& isa, int64_t row, int64_t count) const {
    each(row, count, [&](int64_t r, int64_t token, int64_t head) {
      isa.load_query(r, query(token, head));
      s.max[r] = t.sinks == nullptr ? -__builtin_inff() : t.sinks[head] * kLog2e;
      s.total[r] = t.sinks == nullptr ? 0.0f : 1.0f;
    });
  }
  void finish(int64_t row, int64_t count) const {
    each(row, count, [&](int64_t r, int64_t token, int64_t head) {
      Isa::finish(s.sums + r * s.pitch, 1.0f / s.total[r],
                  t.gate == nullptr ? nullptr : t.gate + token * t.gate_token + head * t.gate_head, out(token, head),
                  t.d);
    });
  }
  // A row's query and output lie a token's stride from the next one's, where no prefetcher follows.
  void prefetch_query(int64_t r) const {
    for (int64_t c = 0; c < t.d; c += kLine) simd::prefetch_read(query(r / t.group, r % t.group) + c);
  }
  void prefetch_output(int64_t r) const {
    for (int64_t c = 0; c < t.d; c += kLine) simd::prefetch_write(out(r / t.group, r % t.group) + c);
  }

 private:
  static constexpr int64_t kLine = 32;  // elements
  const bf16* query(int64_t token, int64_t head) const { return t.q + token * t.q_token + head * t.q_head; }
  bf16* out(int64_t token, int64_t head) const { return t.out + token * t.out_token + head * t.d; }
  // fn(row, token, head), without a division for every row.
  template <class Fn>
  void each(int64_t row, int64_t count, Fn&& fn) const {
    for (int64_t r = row, token = row / t.group, head = row % t.group; r < row + count; ++r) {
      fn(r, token, head);
      if (++head == t.group) head = 0, ++token;
    }
  }
};

template <class Isa>
void walk(const RowTask& t, const TaskScratch& s) {
  Isa isa(t, s);
  const TileRows<Isa> tile{t, s};
  const int64_t rows = t.tokens * t.group, keys_end = t.end_of(t.tokens - 1);
  const float scale = t.scale * kLog2e;
  // With one tile of rows nothing is used twice: stage little, and use it while it is near.
  const int64_t staged = rows > Isa::kTileRows ? kStagedKeys : kGroupKeys;
  // Keys are staged and grouped at absolute positions, wherever a window begins.
  for (int64_t begin = t.first_key(t.position) / staged * staged; begin < keys_end; begin += staged) {
    const int64_t end = smaller(begin + staged, keys_end);
    if (t.narrow.k != nullptr) widen_blocks(t, begin, end);
    isa.stage_values(begin, end - begin);
    for (int64_t row = 0; row < rows; row += Isa::kTileRows) {
      const int64_t count = smaller(Isa::kTileRows, rows - row);
      const int64_t last = t.end_of((row + count - 1) / t.group) - 1;  // that the tile's last row looks at
      // The group in which the window of the tile's first row begins: the tile's first.
      const int64_t start = t.first_key(t.position + row / t.group) / kGroupKeys * kGroupKeys;
      if (start >= begin && start < end) tile.begin(isa, row, count);
      for (int64_t key = start > begin ? start : begin; key < smaller(end, last + 1); key += kGroupKeys) {
        const int64_t seen = smaller(kGroupKeys, last + 1 - key);
        const bool first = key == start, final = last < key + kGroupKeys;
        isa.scores(row, count, key, seen);
        // While a row's probabilities are computed there is time to prefetch what comes next.
        isa.softmax(row, count, key, seen, first, scale, [&](int64_t r) {
          if (first && r + Isa::kTileRows < rows) tile.prefetch_query(r + Isa::kTileRows);
          if (final) tile.prefetch_output(r);
        });
        isa.accumulate(row, count, key - begin, seen, first);
        if (final) tile.finish(row, count);
      }
    }
  }
  isa.end();
}

}  // namespace
}  // namespace quire::attention
