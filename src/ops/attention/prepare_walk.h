// The order of work in a fast attention_prepare kernel, included by one file per instruction set (all names
// have internal linkage). An Isa has
//   fill_angles(rope, by, cos, sin)                 of a TurnBy
//   prepare_head(a, s, d, rotation, from, weight, to)   one head of q or k: normalised, rotated, rounded
//   write_keys(tokens, block, slot, count, d)        tokens [count][d] to the key layout
//   interleave(even, odd, to, d)                     two tokens' values to their pairs
//   write_single(row, odd, pair, d)                  one token's values to its halves of the pairs
#pragma once

#include <cstring>

#include "ops/attention/kernels.h"
#include "ops/simd/prefetch.h"

namespace quire::attention {
namespace {

// Taylor series of sin(r) / r and of cos(r) in r^2, highest power first: errors below 1e-13 up to pi / 4. And
// pi / 2 in two pieces.
constexpr double kSine[] = {
    1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0};
constexpr double kCosine[] = {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0,
                              -1.0 / 720.0,         1.0 / 24.0,        -1.0 / 2.0,       1.0};
constexpr double kQuarterTurn = 1.5707963267948966, kQuarterTurnRest = 6.123233995736766e-17;
constexpr double kQuarterTurnsPerUnit = 0.63661977236758134308;

// Cosines and sines of one token, [n_rot / 2] each.
struct Rotation {
  float* cos;
  float* sin;
};

// `row` is the first token's value head; tokens follow at `pitch` elements.
template <class Isa>
void write_values(const bf16* row, int64_t pitch, bf16* block, int64_t slot, int64_t count, int64_t d) {
  for (int64_t t = slot; t < slot + count; ++t, row += pitch) {
    bf16* const pair = block + value_offset(t / 2 * 2, 0, d);
    if (t % 2 == 0 && t + 1 < slot + count) {
      Isa::interleave(row, row + pitch, pair, d);
      ++t;
      row += pitch;
    } else {
      Isa::write_single(row, t % 2 != 0, pair, d);
    }
  }
}

// Elements to prefetch, a share at every turn.
template <bool kWrite>
class Prefetcher {
 public:
  Prefetcher(const void* begin, int64_t elems, int64_t turns)
      : at_(static_cast<const char*>(begin)), end_(at_ + elems * 2), share_((elems * 2 / turns + 63) / 64 * 64) {}
  void turn() {
    for (const char* const to = std::min(at_ + share_, end_); at_ < to; at_ += 64)
      kWrite ? simd::prefetch_write(at_) : simd::prefetch_read(at_);
  }

 private:
  const char *at_, *end_;
  int64_t share_;
};

// A head's values of an item's tokens: where they were projected to, or normalised.
struct Values {
  const bf16* first;
  int64_t pitch;
};
template <class Isa>
Values values_of(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& item, int64_t row,
                 int64_t h, int64_t d) {
  const bf16* const from = static_cast<const bf16*>(a.v_proj.data) + row * a.v_proj.stride[0] + h * d;
  if (a.v_norm.empty()) return {from, a.v_proj.stride[0]};
  AttentionPrepareArgs still = a;
  still.rope.n_rot = 0;
  for (int64_t i = 0; i < item.count; ++i)
    Isa::prepare_head(still, s, d, {}, from + i * a.v_proj.stride[0], a.v_norm, s.tokens + i * d);
  return {s.tokens, d};
}

template <class Isa>
void prepare(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& item) {
  const Heads n = heads_of(a);
  const int64_t row = item.segment->row + item.first, d = n.d, kv_heads = written_heads(a);
  const int32_t position = item.segment->position + item.first;
  const int32_t block = a.segments.table(*item.segment)[position / kBlockTokens];
  const int64_t slot = position % kBlockTokens, q_width = a.gate.empty() ? d : 2 * d;
  const auto at = [](const Tensor& t, int64_t i, int64_t column) {
    return static_cast<bf16*>(t.data) + i * t.stride[0] + column;
  };
  const auto rotation = [&](int64_t i) { return Rotation{s.cos + i * s.pairs, s.sin + i * s.pairs}; };
  // While queries are prepared, what keys and values will be read from is prefetched and, if all of the block is
  // written, the block; a token's next queries come 2 KiB ahead. Prefetchers of the hardware
  // stop at every page, and heads of keys lie at strides that they do not follow.
  constexpr int64_t kAhead = 1024;
  const bool narrow = a.kv.k.dtype == DType::kF8E4M3;
  const int64_t block_elems = kv_heads * kBlockTokens * d, turns = item.count * n.q_heads;
  Prefetcher<true> keys(at(a.kv.k, block, 0), block_elems, turns), values(at(a.kv.v, block, 0), block_elems, turns);
  for (int64_t i = 0; i < item.count; ++i) {
    const Rotation r = rotation(i);
    Prefetcher<false> k_row(at(a.k_proj, row + i, 0), kv_heads * d, n.q_heads),
        v_row(at(a.v_proj, row + i, 0), kv_heads * d, n.q_heads);
    Isa::fill_angles(a.rope, turn_by(a, row + i, position + static_cast<int32_t>(i)), r.cos, r.sin);
    for (int64_t h = 0; h < n.q_heads; ++h) {
      k_row.turn();
      v_row.turn();
      if (item.count == kBlockTokens && !narrow) {
        keys.turn();
        values.turn();
      }
      const bf16* const from = at(a.q_proj, row + i, h * q_width);
      bf16* const to = at(a.q, row + i, h * a.q.stride[1]);
      for (int64_t c = 0; c < q_width; c += 32) simd::prefetch_read(from + kAhead + c);
      for (int64_t c = 0; c < d; c += 32) simd::prefetch_write(to + kAhead + c);
      Isa::prepare_head(a, s, d, r, from, a.q_norm, to);
      if (!a.gate.empty())
        std::memcpy(at(a.gate, row + i, h * a.gate.stride[1]), from + d, static_cast<size_t>(d) * sizeof(bf16));
    }
  }
  for (int64_t h = 0; h < kv_heads; ++h) {
    const auto narrow_head = [&](const Tensor& t) {
      return static_cast<e4m3*>(t.data) + block * t.stride[0] + h * t.stride[1];
    };
    for (int64_t i = 0; i < item.count; ++i)
      Isa::prepare_head(a, s, d, rotation(i), at(a.k_proj, row + i, h * d), a.k_norm, s.tokens + i * d);
    if (narrow)
      write_codes(s.tokens, d, item.count, d, true, slot, narrow_head(a.kv.k));
    else
      Isa::write_keys(s.tokens, at(a.kv.k, block, h * a.kv.k.stride[1]), slot, item.count, d);
    const Values v = values_of<Isa>(a, s, item, row, h, d);
    if (narrow)
      write_codes(v.first, v.pitch, item.count, d, false, slot, narrow_head(a.kv.v));
    else
      write_values<Isa>(v.first, v.pitch, at(a.kv.v, block, h * a.kv.v.stride[1]), slot, item.count, d);
  }
}

}  // namespace
}  // namespace quire::attention
