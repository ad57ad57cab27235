// The core for BF16 weights with ARM's BFMMLA: two weight rows of four columns meet two tokens of four. What the
// instruction computes is part of the architecture (FEAT_BF16, with FPCR.EBF 0 as every process begins): products of
// two columns are added and rounded to odd, and so is what they are added to; numbers below 2^-126 are zeros. An output
// element is a chain of these in ascending columns, begun again every 128 columns (kSegment), because a chain of
// roundings to odd may lose a whole last place in each; what the segments give is added in float32, rounded to nearest.
//
// 16 weight rows are eight pairs. Few tokens meet them as they lie, and pairs are brought together in registers; for
// many tokens that is done once, in memory. One token alone wastes half of an instruction: a core for it would need
// more instructions to turn its weights.
#include "core/m256.h"

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "core/float.h"
#include "ops/gemm/core.h"
#include "ops/gemm/simd_avx2.h"
#include "ops/gemm/streams.h"

namespace quire::gemm {
namespace {

constexpr int64_t kSegment = 128;      // columns of a chain
constexpr int64_t kStep = 32;          // columns between prefetches; rows are padded to them
constexpr int64_t kNearColumns = 512;  // of 16 rows: what stays in the first-level cache while many tokens pass
constexpr int kRowPairs = 8;           // of a group of 16 rows
constexpr int kFewPairs = 4;           // of tokens that meet rows as they lie
constexpr int kBlockPairs = 32;        // of tokens whose sums are kept at a time

int64_t width(int64_t cols) {
  return (cols + kStep - 1) / kStep * kStep;
}

// Two tokens lie side by side, four columns of each in turn: where column `col` of token t and the three after it lie.
uint16_t* columns(const Packed& x, int64_t t, int64_t col) {
  return reinterpret_cast<uint16_t*>(x.data) + t / 2 * 2 * width(x.cols) + 2 * col + t % 2 * 4;
}

int64_t packed_bytes(int64_t rows, int64_t cols) {
  return (rows + 1) / 2 * 2 * width(cols) * 2;
}

// The half of a pair that has no token: what it gives is never stored.
void clear_beside(const Packed& x, int64_t t, int64_t col) {
  if (t + 1 == x.rows && t % 2 == 0) std::memset(columns(x, t, col) + 4, 0, 8);
}

void pack(const Tensor& x, const int32_t* row_of, int64_t tile, const Packed& to) {
  const int64_t end = std::min((tile + 1) * kTileTokens, to.rows);
  for (int64_t t = tile * kTileTokens; t < end; ++t) {
    const int64_t from = (row_of == nullptr ? t : row_of[t]) * x.stride[0];
    for (int64_t c = 0; c < width(to.cols); c += 4) {
      uint16_t four[4] = {};
      for (int64_t i = c; i < std::min(c + 4, to.cols); ++i)
        four[i - c] = x.dtype == DType::kBF16 ? static_cast<const uint16_t*>(x.data)[from + i]
                                              : to_bf16(load_float(x, from + i)).bits;
      std::memcpy(columns(to, t, c), four, sizeof four);
      clear_beside(to, t, c);
    }
  }
}

bfloat16x8_t load8(const uint16_t* p) {
  return vreinterpretq_bf16_u16(vld1q_u16(p));
}

// Four columns of two rows, and the next four.
struct TwoOfPair {
  bfloat16x8_t at[2];
};
TwoOfPair bring_together(const uint16_t* first, const uint16_t* second) {
  const uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(first)), b = vreinterpretq_u64_u16(vld1q_u16(second));
  return {{vreinterpretq_bf16_u64(vzip1q_u64(a, b)), vreinterpretq_bf16_u64(vzip2q_u64(a, b))}};
}

// 16 rows where they lie. Rows past the end repeat the first: what they give is not stored.
struct RowsInPlace {
  const uint16_t* row[2 * kRowPairs];
  TwoOfPair load(int pair, int64_t col) const { return bring_together(row[2 * pair] + col, row[2 * pair + 1] + col); }
};
// Four columns of eight pairs, then the next four.
struct PackedRows {
  const uint16_t* data;
  // `col` is a multiple of four.
  static constexpr int64_t at(int pair, int64_t col) { return 2 * kRowPairs * col + 8 * pair; }
  TwoOfPair load(int pair, int64_t col) const {
    return {{load8(data + at(pair, col)), load8(data + at(pair, col + 4))}};
  }
};

RowsInPlace rows_in_place(const Weight& w, int64_t expert, int64_t row) {
  RowsInPlace rows;
  for (int64_t r = 0; r < 2 * kRowPairs; ++r)
    rows.row[r] = reinterpret_cast<const uint16_t*>(w.row(row + (r < w.rows - row ? r : 0), expert));
  return rows;
}

void store_pair(const uint16_t* first, const uint16_t* second, int pair, int64_t col, uint16_t* to) {
  for (int64_t c = 0; c < kStep; c += 8) {
    const TwoOfPair two = bring_together(first + c, second + c);
    for (int64_t i = 0; i < 2; ++i)
      vst1q_u16(to + PackedRows::at(pair, col + c + 4 * i), vreinterpretq_u16_bf16(two.at[i]));
  }
}

PackedRows pack_rows(const Weight& w, int64_t expert, int64_t row, PrefetchStreams* streams, uint16_t* to) {
  const RowsInPlace rows = rows_in_place(w, expert, row);
  const int64_t whole = w.cols / kStep * kStep;
  PrefetchAhead ahead(streams, kRowPairs * width(w.cols) / kStep);
  for (int64_t c = 0; c < whole; c += kStep)
    for (int pair = 0; pair < kRowPairs; ++pair, ahead.turn())
      store_pair(rows.row[2 * pair] + c, rows.row[2 * pair + 1] + c, pair, c, to);
  for (int pair = 0; whole < w.cols && pair < kRowPairs; ++pair, ahead.turn()) {
    uint16_t ends[2][kStep] = {};
    for (int i = 0; i < 2; ++i)
      std::memcpy(ends[i], rows.row[2 * pair + i] + whole, static_cast<size_t>(w.cols - whole) * 2);
    store_pair(ends[0], ends[1], pair, whole, to);
  }
  return {to};
}

// Of a pair of tokens with 16 rows: [pair of rows][row][token].
struct PairSums {
  float32x4_t of[kRowPairs];
};

// What is prefetched while few tokens meet rows as they lie.
struct Beside {
  explicit Beside(PrefetchStreams* s, int64_t turns = 1) : streams(s) {
    if (s != nullptr) pace = PrefetchPace(*s, turns);
  }
  void turn() {
    if (streams != nullptr) pace.turn(*streams);
  }
  PrefetchStreams* streams;
  PrefetchPace pace;
};

// sums[t] += kRows pairs of rows, from `first` on, times a pair of tokens, over columns [begin, end), which begin where
// a segment does.
template <int kRows, int kTokens, class Rows>
void multiply(const Rows& rows, int first, int64_t begin, int64_t end, const uint16_t* const* x, Beside& beside,
              PairSums* sums) {
  constexpr int64_t kTurn = 32 / kTokens;  // columns of the tokens in registers, 8 vectors
  for (int64_t segment = begin; segment < end; segment += kSegment) {
    float32x4_t acc[kRows][kTokens];
    for (auto& of_row : acc)
      for (float32x4_t& sum : of_row) sum = vdupq_n_f32(0.0f);
    for (int64_t step = segment; step < std::min(segment + kSegment, end); step += kStep, beside.turn()) {
#pragma GCC unroll 4
      for (int64_t c = step; c < step + kStep; c += kTurn) {
        bfloat16x8_t token[kTokens][kTurn / 4];
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t)
#pragma GCC unroll 8
          for (int64_t i = 0; i < kTurn / 4; ++i) token[t][i] = load8(x[t] + 2 * c + 8 * i);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
          for (int64_t i = 0; i < kTurn / 8; ++i) {
            const TwoOfPair w = rows.load(first + r, c + 8 * i);
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t) {
              acc[r][t] = vbfmmlaq_f32(acc[r][t], w.at[0], token[t][2 * i]);
              acc[r][t] = vbfmmlaq_f32(acc[r][t], w.at[1], token[t][2 * i + 1]);
            }
          }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int t = 0; t < kTokens; ++t) sums[t].of[first + r] = vaddq_f32(sums[t].of[first + r], acc[r][t]);
  }
}

// Pairs of tokens of a block. Behind them the last one is repeated, so that there are always some to be multiplied.
struct TokenPairs {
  TokenPairs(const Packed& packed, int64_t first, int64_t count) : pairs(static_cast<int>((count + 1) / 2)) {
    for (int p = 0; p < pairs + kFewPairs - 1; ++p) x[p] = columns(packed, first + 2 * std::min(p, pairs - 1), 0);
  }
  int pairs;
  const uint16_t* x[kBlockPairs + kFewPairs - 1];
};

void multiply_block(const RowsInPlace& rows, const TokenPairs& tokens, int64_t cols, PrefetchStreams* streams,
                    PairSums* sums) {
  const int64_t turns = cols / kStep;
  if (tokens.pairs <= 2) {
    Beside beside(streams, turns);
    tokens.pairs == 1 ? multiply<8, 1>(rows, 0, 0, cols, tokens.x, beside, sums)
                      : multiply<8, 2>(rows, 0, 0, cols, tokens.x, beside, sums);
    return;
  }
  Beside beside(streams, 2 * turns);
  for (const int half : {0, 4}) multiply<4, 4>(rows, half, 0, cols, tokens.x, beside, sums);
}

void multiply_block(const PackedRows& rows, const TokenPairs& tokens, int64_t cols, PrefetchStreams*, PairSums* sums) {
  Beside nothing(nullptr);
  for (int64_t c = 0; c < cols; c += kNearColumns)
    for (int p = 0; p < tokens.pairs; p += 4)
      for (const int half : {0, 4})
        multiply<4, 4>(rows, half, c, std::min(c + kNearColumns, cols), tokens.x + p, nothing, sums + p);
}

// What one token has of 16 rows.
void take_token(const PairSums& sums, int64_t which, float (&to)[16]) {
  for (int pair = 0; pair < kRowPairs; ++pair) {
    float four[4];
    vst1q_f32(four, sums.of[pair]);
    to[2 * pair] = four[which];
    to[2 * pair + 1] = four[2 + which];
  }
}

// Calls result(token, sums of a, sums of b) for all tokens; b may be null. a is group `group` of the job, b the next.
template <class Rows, class Result>
void each_token(const Rows& a, const Rows* b, const Packed& x, GroupOrder& order, int64_t group, Result&& result) {
  PairSums sums[2][kBlockPairs + kFewPairs - 1];
  for (int64_t first = 0; first < x.rows; first += 2 * kBlockPairs) {
    const int64_t count = std::min<int64_t>(x.rows - first, 2 * kBlockPairs);
    const TokenPairs tokens(x, first, count);
    for (int i = 0; i < (b == nullptr ? 1 : 2); ++i) {
      std::fill(std::begin(sums[i]), std::end(sums[i]), PairSums{});
      multiply_block(i == 0 ? a : *b, tokens, width(x.cols), order.prefetch_beside(group + i), sums[i]);
    }
    for (int64_t t = 0; t < count; ++t) {
      alignas(32) float of_a[16], of_b[16];
      take_token(sums[0][t / 2], t % 2, of_a);
      if (b != nullptr) take_token(sums[1][t / 2], t % 2, of_b);
      result(first + t, of_a, of_b);
    }
  }
}

bool in_place_serves(const Weight& w, const Packed& x) {
  return x.rows <= 2 * kFewPairs && w.cols % kStep == 0;
}

// Both matrices of a pair, or one alone.
template <class Result>
void each_result(const Weight& a, const Weight* b, int64_t expert, int64_t row, const Packed& x, GroupOrder& order,
                 int64_t group, std::byte* scratch, Result&& result) {
  if (in_place_serves(a, x)) {
    const RowsInPlace of_a = rows_in_place(a, expert, row);
    if (b == nullptr) return each_token<RowsInPlace>(of_a, nullptr, x, order, group, result);
    const RowsInPlace of_b = rows_in_place(*b, expert, row);
    return each_token(of_a, &of_b, x, order, group, result);
  }
  auto* const to = reinterpret_cast<uint16_t*>(scratch);
  const PackedRows of_a = pack_rows(a, expert, row, order.prefetch_beside(group), to);
  if (b == nullptr) return each_token<PackedRows>(of_a, nullptr, x, order, group, result);
  const PackedRows of_b = pack_rows(*b, expert, row, order.prefetch_beside(group + 1), to + 16 * width(a.cols));
  each_token(of_a, &of_b, x, order, group, result);
}

int64_t scratch_bytes(int64_t, int64_t, int64_t cols) {
  return 2 * 16 * width(cols) * 2;
}

void project(const ProjectJob& job, std::byte* scratch) {
  const Weight& w = *job.w;
  const float scale = w.scale_of(job.expert);
  const int64_t end = std::min(job.row + job.panels * kPanelRows, w.rows);
  GroupOrder order({w.row(job.row, job.expert)}, (end - job.row + 15) / 16, 16 * w.row_bytes(), job.prefetch);
  for (int64_t row = job.row; row < end; row += 16)
    each_result(w, nullptr, job.expert, row, *job.x, order, (row - job.row) / 16, scratch,
                [&](int64_t t, const float* sums, const float*) {
                  store_row16(*job.out, t, row, std::min<int64_t>(end - row, 16),
                              {_mm256_load_ps(sums), _mm256_load_ps(sums + 8)}, scale);
                });
}

// 16 columns of mid from `row` on.
void store_mid(const Packed& mid, int64_t t, int64_t row, const uint16_t (&values)[16]) {
  for (int64_t i = 0; i < 16; i += 4) {
    std::memcpy(columns(mid, t, row + i), values + i, 8);
    clear_beside(mid, t, row + i);
  }
}

void swiglu_unit(const SwigluJob& job, int64_t row, int64_t t, const float* gate, const float* up) {
  const int64_t left = job.gate->rows - row;
  alignas(32) float gates[16], ups[16];
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t n = row + (i < left ? i : 0);
    gates[i] = gate[i] * job.gate->scale_of(job.expert);
    ups[i] = up[i] * job.up->scale_of(job.expert);
    if (job.gate_bias != nullptr) gates[i] += job.gate_bias[n];
    if (job.up_bias != nullptr) ups[i] += job.up_bias[n];
  }
  uint16_t values[16];
  for (int i = 0; i < 16; i += 8)
    gated_vectors(job.activation, simd::Vec256::load(gates + i), simd::Vec256::load(ups + i)).store(values + i);
  for (int64_t i = std::min<int64_t>(left, 16); i < 16; ++i) values[i] = 0;
  store_mid(*job.mid, t, row, values);
}

void swiglu(const SwigluJob& job, std::byte* scratch) {
  const int64_t groups = std::min(job.units, (job.gate->rows - job.row + 15) / 16) * 2;
  GroupOrder order({job.gate->row(job.row, job.expert), job.up->row(job.row, job.expert)}, groups,
                   16 * job.gate->row_bytes(), job.prefetch);
  for (int64_t u = 0; u < job.units; ++u) {
    const int64_t row = job.row + u * kPairRows;
    if (row >= job.gate->rows) {
      for (int64_t t = 0; t < job.mid->rows; ++t) store_mid(*job.mid, t, row, {});
      continue;
    }
    each_result(*job.gate, job.up, job.expert, row, *job.x, order, 2 * u, scratch,
                [&](int64_t t, const float* gate, const float* up) { swiglu_unit(job, row, t, gate, up); });
  }
}

}  // namespace

const Core kBfmmlaCore = {packed_bytes, pack, [](const Tensor&) { return false; }, scratch_bytes, project,
                          swiglu,       [] {}};

}  // namespace quire::gemm
