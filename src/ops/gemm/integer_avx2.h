// The integer core for 256-bit vectors, for one token and for many: 16 weight rows at a time are decoded to
// codes of 16 bits, 256 columns of them into the first-level cache (panel_avx2.h), and multiplied with
// integer tokens two columns at a time, exactly. A lane is a weight row, so sums need no adding up across
// lanes; a token's two integers are broadcast.
//
// Per element: each part of a step has an accumulator of its own, walked in ascending steps; 0 + 1, or (0 +
// 2) + (1 + 3), at the end. With K-quants sums of 256 columns are first multiplied by the unit's d. Tokens do
// not meet, and how many there are decides only how often a panel is used. These are the integers, factors
// and order of additions of the core for AVX-512, so the bits are too.
//
// Included by the file of each instruction set, with the Dot that it multiplies by; all names have internal
// linkage.
#pragma once

#include <algorithm>

#include "ops/gemm/core.h"
#include "ops/gemm/formats/all.h"
#include "ops/gemm/simd_avx2.h"
#include "ops/gemm/streams.h"
#include "ops/gemm/tile_avx2.h"

namespace quire::gemm {
namespace {

constexpr int64_t kTokenBlock = 256;   // that share a decoded panel: their accumulators stay near the core
constexpr int64_t kFewTokens = 2;      // that decode rows each for itself: a panel would cost more than it saves
constexpr int64_t kMostSums = 4 * 16;  // of a token: [parts][16 rows]

inline int64_t steps_of(int64_t cols) {
  return (cols + kStepColumns - 1) / kStepColumns;
}
inline TokenStep* token(const Packed& x, int64_t t) {
  return reinterpret_cast<TokenStep*>(x.data) + t * steps_of(x.cols);
}

// ---- What there is of a format

using MultiplyOne = void (*)(EightRows, int64_t, const TokenStep*, PrefetchStreams&, PrefetchPace&, float*);
using DecodePanel = void (*)(EightRows rows, int steps, PanelHalf& to);
using MultiplyPanel = void (*)(const Panel&, int, int, const TokenStep* const*, float* const*);

struct FormatKernels {
  MultiplyOne one;
  DecodePanel decode;
  MultiplyPanel multiply[kMostTokens];  // by their number of tokens, less one
  int64_t chunk_bytes;                  // of 256 columns
  int parts, bias_shift;                // 32: there is no bias
  float unit;
};

template <class F, class Rows>
void decode_panel(EightRows rows, int steps, PanelHalf& to) {
  F::decode(Rows(rows), steps, to);
}

template <class Dot, class F, class Rows>
constexpr FormatKernels kKernelsOf = {
    multiply_one<Dot, F, Rows>,
    decode_panel<F, Rows>,
    {multiply_panel<Dot, typename F::Sums, 1>, multiply_panel<Dot, typename F::Sums, 2>,
     multiply_panel<Dot, typename F::Sums, 3>},
    Rows::kChunkBytes,
    F::Sums::kParts,
    bias_shift<F>(),
    F::kUnit};

// For rows of the file, FileRows, or of a copy, CopyRows.
template <class Dot, template <DType> class Rows>
constexpr auto kKernels = quant::table_by_type<const FormatKernels*, quant::has_integers>([]<DType kType>() {
  using F = typename OnAvx2<kType>::template Panel<Rows<kType>::kRepacked>;
  return &kKernelsOf<Dot, F, Rows<kType>>;
});

template <class Dot, template <DType> class Rows>
const FormatKernels& kernels_of(DType type) {
  const FormatKernels* const kernels = kKernels<Dot, Rows>[type];
  if (kernels == nullptr) fatal(__FILE__, __LINE__, "the integer core has no such format");
  return *kernels;
}

// 16 weight rows, or as many as there are, in the file or in a copy.
struct RowGroup {
  const FormatKernels* kernels = nullptr;
  const std::byte* first = nullptr;
  int64_t stride = 0;  // 0: repacked
  int64_t cols = 0, rows = 0;

  bool repacked() const { return stride == 0; }
  // Rows [8 half, ...).
  EightRows eight(int half) const {
    return repacked() ? EightRows{first + half * 8 * 4, 0} : EightRows{first + 8 * half * stride, stride};
  }
  // Whether `steps` steps of 16 rows are there, if only as zeros.
  bool whole(int64_t steps) const { return repacked() || (rows >= 16 && cols >= steps * kStepColumns); }
};

// Columns [256 chunk, ...) of a group, `steps` steps of them. Rows and columns past the ends are zeros.
inline void decode_chunk(const RowGroup& g, int64_t chunk, int steps, PrefetchStreams& prefetch, PrefetchPace& pace,
                         Panel& to) {
  const int64_t at = chunk * g.kernels->chunk_bytes;
  const auto decode = [&](EightRows rows, int half) {
    PanelHalf sink(to, half, prefetch, pace);
    g.kernels->decode(rows, steps, sink);
  };
  if (g.whole(chunk * kChunkSteps + steps)) {
    for (int h = 0; h < 2; ++h) decode(g.eight(h).at(at), h);
    return;
  }
  constexpr int64_t kMostBytes = 288;
  alignas(64) std::byte copy[16][kMostBytes] = {};
  const int64_t left = std::min(g.stride - at, g.kernels->chunk_bytes);
  for (int64_t r = 0; r < std::min<int64_t>(g.rows, 16); ++r)
    std::memcpy(copy[r], g.first + r * g.stride + at, static_cast<size_t>(left));
  for (int h = 0; h < 2; ++h) decode({copy[8 * h], kMostBytes}, h);
}

// The accumulators of 16 rows become their sums.
inline void finish_sums(const FormatKernels& k, const float* of, __m256 (&sums)[2]) {
  for (int h = 0; h < 2; ++h) {
    const auto part = [&](int i) { return _mm256_load_ps(of + 16 * i + 8 * h); };
    const __m256 sum = k.parts == 2 ? _mm256_add_ps(part(0), part(1))
                                    : _mm256_add_ps(_mm256_add_ps(part(0), part(2)), _mm256_add_ps(part(1), part(3)));
    sums[h] = _mm256_mul_ps(sum, _mm256_set1_ps(k.unit));
  }
}

// ---- The core

template <class Dot>
struct WideIntegers {
  // What a thread needs for a job.
  struct Scratch {
    Panel panels[2];
    alignas(64) float sums[2][kTokenBlock][kMostSums];
    alignas(64) float mid[kTokenBlock][32];
  };

  static int64_t packed_bytes(int64_t rows, int64_t cols) {
    return rows * steps_of(cols) * static_cast<int64_t>(sizeof(TokenStep));
  }
  static bool in_place(const Tensor&) { return false; }
  static int64_t scratch_bytes(int64_t, int64_t, int64_t) { return static_cast<int64_t>(sizeof(Scratch)); }
  static void finish() {}

  static void pack(const Tensor& x, const int32_t* row_of, int64_t tile, const Packed& to) {
    using simd::Vec256;
    const int64_t first = tile * kTileTokens, end = std::min(first + kTileTokens, to.rows);
    for (int64_t t = first; t < end; ++t) {
      const uint16_t* const from =
          static_cast<const uint16_t*>(x.data) + (row_of == nullptr ? t : row_of[t]) * x.stride[0];
      TokenStep* const steps = token(to, t);
      for (int64_t k = 0; k < steps_of(to.cols) * kStepColumns; k += 32) {
        __m256 v[4];
        for (int64_t i = 0; i < 4; ++i) {
          const int64_t at = k + 8 * i, left = to.cols - at;
          v[i] = left >= 8  ? Vec256::load(from + at).v
                 : left > 0 ? Vec256::load(from + at, static_cast<int>(left)).v
                            : _mm256_setzero_ps();
        }
        quantise(v, steps[k / kStepColumns], static_cast<int>(k / 32 % 2));
      }
    }
  }

  static RowGroup group(const Weight& w, int64_t expert, int64_t row) {
    const bool repacked = w.repacked != nullptr;
    return {repacked ? &kernels_of<Dot, CopyRows>(w.dtype) : &kernels_of<Dot, FileRows>(w.dtype),
            group_begin(w, expert, row), repacked ? 0 : w.row_bytes(), w.cols, w.rows - row};
  }
  static const std::byte* group_begin(const Weight& w, int64_t expert, int64_t row) {
    return w.repacked == nullptr ? w.row(row, expert) : repacked_group(w, expert, row, group_bytes(w));
  }
  static int64_t group_bytes(const Weight& w) {
    return w.repacked == nullptr ? kGroupRows * w.row_bytes() : repacked_group_bytes(w.dtype, w.cols);
  }

  // Tokens [begin, begin + count) times up to two groups: what they give is in scratch.sums. The groups'
  // share of `streams` is prefetched meanwhile, if there are any.
  static void multiply(const RowGroup* groups, int of_groups, const Packed& x, int64_t begin, int64_t count,
                       PrefetchStreams* streams, Scratch& scratch) {
    PrefetchStreams none;
    PrefetchStreams& prefetch = streams == nullptr ? none : *streams;
    const int64_t steps = steps_of(x.cols);
    PrefetchPace pace(prefetch, 2 * steps);
    for (int g = 0; g < of_groups; ++g)
      std::memset(scratch.sums[g], 0, static_cast<size_t>(count) * sizeof scratch.sums[g][0]);
    if (count <= kFewTokens && groups[0].whole(steps) && groups[of_groups - 1].whole(steps)) {
      for (int g = 0; g < of_groups; ++g)
        multiply_few(groups[g], steps, token(x, begin), count, prefetch, pace, scratch.sums[g]);
      return;
    }
    for (int64_t first = 0; first < steps; first += kChunkSteps) {
      const int in_chunk = static_cast<int>(std::min<int64_t>(kChunkSteps, steps - first));
      for (int g = 0; g < of_groups; ++g)
        decode_chunk(groups[g], first / kChunkSteps, in_chunk, prefetch, pace, scratch.panels[g]);
      for (int64_t t = 0; t < count; t += kMostTokens)
        multiply_tile(groups, of_groups, x, begin, t, std::min<int64_t>(kMostTokens, count - t), first, in_chunk,
                      scratch);
    }
  }
  // Repacked rows 0 to 7 lie in the same lines as 8 to 15, so both take turns, while these lines are near.
  static void multiply_few(const RowGroup& g, int64_t steps, const TokenStep* x, int64_t count,
                           PrefetchStreams& prefetch, PrefetchPace& pace, float (*sums)[kMostSums]) {
    constexpr int64_t kTurnSteps = 2 * kChunkSteps;
    const int64_t turn = g.repacked() ? kTurnSteps : steps;
    for (int64_t s = 0; s < steps; s += turn)
      for (int h = 0; h < 2; ++h)
        for (int64_t t = 0; t < count; ++t)
          g.kernels->one(g.eight(h).at(s / kChunkSteps * g.kernels->chunk_bytes), std::min(turn, steps - s),
                         x + t * steps + s, prefetch, pace, sums[t] + 8 * h);
  }
  // Tokens [t, t + tokens) of those from `begin` on, steps [first, first + steps).
  static void multiply_tile(const RowGroup* groups, int of_groups, const Packed& x, int64_t begin, int64_t t,
                            int64_t tokens, int64_t first, int steps, Scratch& scratch) {
    const TokenStep* of_tokens[kMostTokens];
    for (int i = 0; i < tokens; ++i) of_tokens[i] = token(x, begin + t + i) + first;
    for (int g = 0; g < of_groups; ++g) {
      float* sums[kMostTokens];
      for (int i = 0; i < tokens; ++i) sums[i] = scratch.sums[g][t + i];
      const FormatKernels& k = *groups[g].kernels;
      k.multiply[tokens - 1](scratch.panels[g], steps, k.bias_shift, of_tokens, sums);
    }
  }

  static void project(const ProjectJob& job, std::byte* memory) {
    Scratch& scratch = *reinterpret_cast<Scratch*>(memory);
    const Weight& w = *job.w;
    const int64_t rows = std::min(w.rows - job.row, job.panels * kPanelRows), groups = (rows + 15) / 16;
    GroupOrder order({group_begin(w, job.expert, job.row)}, groups, group_bytes(w), job.prefetch);
    for (int64_t i = 0; i < groups; i += 2) {
      const int of_groups = i + 1 < groups ? 2 : 1;
      RowGroup both[2];
      for (int g = 0; g < of_groups; ++g) both[g] = group(w, job.expert, job.row + 16 * (i + g));
      for (int64_t t = 0; t < job.x->rows; t += kTokenBlock) {
        const int64_t count = std::min(kTokenBlock, job.x->rows - t);
        multiply(both, of_groups, *job.x, t, count, t == 0 ? order.prefetch_beside(i) : nullptr, scratch);
        for (int64_t j = 0; j < count; ++j)
          for (int g = 0; g < of_groups; ++g) {
            __m256 sums[2];
            finish_sums(*both[g].kernels, scratch.sums[g][j], sums);
            const int64_t row = 16 * (i + g);
            store_row16(*job.out, t + j, job.row + row, std::min<int64_t>(16, rows - row), sums,
                        w.scale_of(job.expert));
          }
      }
    }
  }

  // 16 values of SiLU(gate) * up from row on, as bf16 would have them, zeros past F.
  static void swiglu16(const SwigluJob& job, int64_t row, const __m256 (&gate)[2], const __m256 (&up)[2], float* to) {
    using simd::Vec256;
    for (int h = 0; h < 2; ++h) {
      const int left = static_cast<int>(std::clamp<int64_t>(job.gate->rows - row - 8 * h, 0, 8));
      const auto finished = [&](__m256 sum, const Weight& w, const float* bias) {
        Vec256 v{_mm256_mul_ps(sum, _mm256_set1_ps(w.scale_of(job.expert)))};
        if (bias != nullptr && left > 0) v = v + Vec256::load(bias + row + 8 * h, left);
        return v.v;
      };
      const __m256 v =
          swiglu8(job.activation, finished(gate[h], *job.gate, job.gate_bias), finished(up[h], *job.up, job.up_bias));
      _mm256_store_ps(to + 8 * h, _mm256_and_ps(v, _mm256_castsi256_ps(Vec256::mask(left))));
    }
  }

  // Two units at a time: 32 columns of mid have a scale in common.
  static void swiglu(const SwigluJob& job, std::byte* memory) {
    Scratch& scratch = *reinterpret_cast<Scratch*>(memory);
    const Packed& mid = *job.mid;
    const int64_t end = job.row + job.units * kPairRows, real = std::min(job.gate->rows, end);
    GroupOrder order({group_begin(*job.gate, job.expert, job.row), group_begin(*job.up, job.expert, job.row)},
                     (real - job.row + 15) / 16 * 2, group_bytes(*job.gate), job.prefetch);
    for (int64_t row = job.row; row < end; row += 2 * kPairRows)
      for (int64_t t = 0; t < mid.rows; t += kTokenBlock) {
        const int64_t count = std::min(kTokenBlock, mid.rows - t);
        for (int u = 0; u < 2; ++u) {
          const int64_t at = row + kPairRows * u;
          if (at >= real) {
            for (int64_t j = 0; j < count; ++j) std::memset(scratch.mid[j] + 16 * u, 0, 16 * sizeof(float));
            continue;
          }
          const RowGroup both[2] = {group(*job.gate, job.expert, at), group(*job.up, job.expert, at)};
          multiply(both, 2, *job.x, t, count, t == 0 ? order.prefetch_beside((at - job.row) / 16 * 2) : nullptr,
                   scratch);
          for (int64_t j = 0; j < count; ++j) {
            __m256 gate[2], up[2];
            finish_sums(*both[0].kernels, scratch.sums[0][j], gate);
            finish_sums(*both[1].kernels, scratch.sums[1][j], up);
            swiglu16(job, at, gate, up, scratch.mid[j] + 16 * u);
          }
        }
        for (int64_t j = 0; j < count; ++j) quantise_mid(scratch.mid[j], token(mid, t + j)[row / kStepColumns], row);
      }
    // The second half of a last step that mid ends before.
    if (end >= swiglu_units(job.gate->rows) * kPairRows && end % kStepColumns != 0) {
      constexpr float kZeros[32] = {};
      for (int64_t t = 0; t < mid.rows; ++t) quantise_mid(kZeros, token(mid, t)[end / kStepColumns], end);
    }
  }
  static void quantise_mid(const float* values, TokenStep& to, int64_t row) {
    const auto eight = [&](int i) { return _mm256_loadu_ps(values + 8 * i); };
    quantise({eight(0), eight(1), eight(2), eight(3)}, to, static_cast<int>(row / 32 % 2));
  }
};

template <class Dot>
inline constexpr Core kWideIntegers = {WideIntegers<Dot>::packed_bytes,
                                       WideIntegers<Dot>::pack,
                                       WideIntegers<Dot>::in_place,
                                       WideIntegers<Dot>::scratch_bytes,
                                       WideIntegers<Dot>::project,
                                       WideIntegers<Dot>::swiglu,
                                       WideIntegers<Dot>::finish,
                                       true,
                                       true};

}  // namespace
}  // namespace quire::gemm
