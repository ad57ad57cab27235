// The integer core, for the few generated tokens of an engine that runs one or two sequences: memory's speed
// where the bf16 cores are bound by decoding. A weight is an integer times a factor in every block format, so
// a row's codes are multiplied as they are (vpdpbusd) with tokens of 11 bits, exactly in 32-bit integers
// within a group of 16 columns; the group's sum is then multiplied by both scales in float32. No weight is
// rounded. A token is rounded once, by at most 1/2032 of the largest of its 32 neighbours.
//
// Rows are read where the file has them, or from repacked copies (repack.h), which is faster and gives the
// same bits.
//
// Per element: what has a factor of its own within a step, two blocks of 32 columns or four groups of 16, has
// an accumulator of its own, walked in ascending steps; 0 + 1, or (0 + 2) + (1 + 3), at the end. With
// K-quants sums of a unit of 256 columns are first multiplied by the unit's d. Tokens do not meet.
#include <algorithm>

#include "ops/gemm/core.h"
#include "ops/gemm/formats/all.h"
#include "ops/gemm/simd_avx512.h"

namespace quire::gemm {
namespace {

constexpr int kMostTokens = 2;  // that share decoded weights: more do not fit the registers

int64_t steps_of(int64_t cols) {
  return (cols + kStepColumns - 1) / kStepColumns;
}
TokenStep* token(const Packed& x, int64_t t) {
  return reinterpret_cast<TokenStep*>(x.data) + t * steps_of(x.cols);
}

int64_t packed_bytes(int64_t rows, int64_t cols) {
  return rows * steps_of(cols) * static_cast<int64_t>(sizeof(TokenStep));
}

__m512 load_bf16(const uint16_t* p, int64_t count) {
  const __m256i v = _mm256_maskz_loadu_epi16(first_lanes(count), p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

void pack(const Tensor& x, const int32_t* row_of, int64_t tile, const Packed& to) {
  const int64_t first = tile * kTileTokens;
  const int64_t end = first + kTileTokens < to.rows ? first + kTileTokens : to.rows;
  for (int64_t t = first; t < end; ++t) {
    const uint16_t* const from =
        static_cast<const uint16_t*>(x.data) + (row_of == nullptr ? t : row_of[t]) * x.stride[0];
    TokenStep* const steps = token(to, t);
    for (int64_t k = 0; k < steps_of(to.cols) * kStepColumns; k += 32)
      quantise({load_bf16(from + k, to.cols - k), load_bf16(from + k + 16, to.cols - k - 16)}, steps[k / kStepColumns],
               static_cast<int>(k / 32 % 2));
  }
}

bool in_place(const Tensor&) {
  return false;
}
int64_t scratch_bytes(int64_t, int64_t, int64_t) {
  return 64;
}
void finish() {}

// ---- 16 weight rows

struct RowGroup {
  DType type = DType::kQ8_0;
  const std::byte* first = nullptr;
  int64_t stride = 0;  // bytes from row to row
  int64_t cols = 0;
  int64_t rows = 0;                     // from here on
  const std::byte* repacked = nullptr;  // or null
  int64_t repacked_bytes = 0;

  RowGroup() = default;
  RowGroup(const Weight& w, int64_t expert, int64_t row)
      : type(w.dtype), first(w.row(row, expert)), stride(w.row_bytes()), cols(w.cols), rows(w.rows - row) {
    if (w.repacked == nullptr) return;
    repacked_bytes = repacked_group_bytes(w.dtype, w.cols);
    repacked = repacked_group(w, expert, row, repacked_bytes);
  }
  RowGroup after(int64_t groups) const {
    RowGroup g = *this;
    g.first += groups * 16 * stride;
    g.rows -= groups * 16;
    if (repacked != nullptr) g.repacked += groups * repacked_bytes;
    return g;
  }
};

// Prefetches 16 rows in four ascending streams, a little at a time: the order in which rows are decoded
// is one that no prefetcher follows.
class RowPrefetch {
 public:
  RowPrefetch(const std::byte* first, int64_t row_bytes, int64_t turns)
      : at_(reinterpret_cast<const char*>(first)),
        stream_(4 * row_bytes),
        left_(first == nullptr || turns == 0 ? 0 : 4 * row_bytes / 64 + 1),
        step_(left_ == 0 ? 0 : (left_ + turns - 1) / turns) {}
  void turn() {
    const int64_t lines = step_ < left_ ? step_ : left_;
    left_ -= lines;
    for (int64_t i = 0; i < lines; ++i, at_ += 64)
      for (int s = 0; s < 4; ++s) _mm_prefetch(at_ + s * stream_, _MM_HINT_T1);
  }

 private:
  const char* at_;
  int64_t stream_, left_, step_;
};

// ---- Integer sums

// A step of a token, as codes of one row or of two rows meet it: codes * (8 high + low), by fours of bytes.
template <class Format, bool kTwo = Format::Lanes::kTwo>
struct TokenColumns {
  explicit TokenColumns(const TokenStep& s) : high(_mm512_load_si512(s.high)), low(_mm512_load_si512(s.low)) {}
  __m512i operator()(__m512i codes) const {
    const __m512i none = _mm512_setzero_si512();
    const __m512i sum = Format::kWide ? _mm512_slli_epi32(_mm512_dpbusd_epi32(none, codes, high), 3)
                                      : _mm512_dpbusd_epi32(none, _mm512_slli_epi16(codes, 3), high);
    return _mm512_dpbusd_epi32(sum, codes, low);
  }
  __m512i high, low;
};
template <class Format>
struct TokenColumns<Format, true> {
  explicit TokenColumns(const TokenStep& s) {
    for (int i = 0; i < 2; ++i) {
      const __m512i columns = i == 0 ? Format::low_columns() : Format::high_columns();
      high[i] = _mm512_permutexvar_epi64(columns, _mm512_load_si512(s.high));
      low[i] = _mm512_permutexvar_epi64(columns, _mm512_load_si512(s.low));
    }
  }
  __m512i operator()(const TwoCodes& codes) const {
    const __m512i first = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes.low, high[0]);
    const __m512i sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(first, codes.high, high[1]), 3);
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, codes.low, low[0]), codes.high, low[1]);
  }
  __m512i high[2], low[2];
};

__m512i even_odd(__m512i a, __m512i b) {  // sums of neighbours: two of a, two of b in each quarter
  const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}
__m512i group_sums(const __m512i (&z)[2]) {
  return even_odd(z[0], z[1]);
}
__m512i group_sums(const __m512i (&z)[4]) {
  return even_odd(even_odd(z[0], z[1]), even_odd(z[2], z[3]));
}

// The group sums of four rows, step s of `p`, for all tokens.
template <class Format, int kTokens, size_t kVectors>
inline __attribute__((always_inline)) void multiply_rows(FourRows p, int s, const TokenColumns<Format>* x,
                                                         __m512i (&sums)[kTokens]) {
  __m512i z[kTokens][kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < static_cast<int>(kVectors); ++v) {
    if constexpr (Format::Lanes::kTwo) {
      const TwoCodes codes = Format::codes(p[2 * v], p[2 * v + 1], s);
      for (int t = 0; t < kTokens; ++t) z[t][v] = x[t](codes);
    } else {
      const __m512i codes = Format::codes(p[v], s);
      for (int t = 0; t < kTokens; ++t) z[t][v] = x[t](codes);
    }
  }
  for (int t = 0; t < kTokens; ++t) sums[t] = group_sums(z[t]);
}

// acc[t][q] += a unit of rows 4 q .. 4 q + 3 times token t.
template <class Format, int kTokens>
inline __attribute__((always_inline)) void add_unit(const Gathered& gathered, const std::byte* first, int64_t stride,
                                                    const TokenStep* const (&x)[kTokens], __m512 (&acc)[kTokens][4]) {
  using Lanes = typename Format::Lanes;
  constexpr int kSteps = Format::kSteps;
  const auto columns = [&](int t, int s) { return TokenColumns<Format>(x[t][s]); };
  __m512i bias[kTokens][kSteps];
  __m512 scales[kTokens][kSteps], minus_values[kTokens][kSteps];  // sums of the token's values
  for (int t = 0; t < kTokens; ++t)
    for (int s = 0; s < kSteps; ++s) {
      const auto in_lanes = [](__m512i lanes, const auto& of) {
        return _mm512_permutexvar_epi32(lanes,
                                        _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(&of))));
      };
      scales[t][s] = _mm512_castsi512_ps(in_lanes(Lanes::scale_lanes(), x[t][s].scale));
      if constexpr (Format::kBias != 0)
        bias[t][s] = _mm512_mullo_epi32(Format::kBlocks ? in_lanes(Lanes::scale_lanes(), x[t][s].minus_twice_block)
                                                        : in_lanes(Lanes::groups(), x[t][s].minus_twice),
                                        _mm512_set1_epi32(Format::kBias / 2));
      if constexpr (Format::kOffsets)
        minus_values[t][s] =
            _mm512_castsi512_ps(Format::kBlocks ? in_lanes(Lanes::scale_lanes(), x[t][s].minus_value)
                                                : in_lanes(Lanes::groups(), x[t][s].minus_value_group));
    }
#pragma GCC unroll 4
  for (int q = 0; q < 4; ++q) {
    const FourRows p{first + 4 * q * stride, stride};
    const typename Format::Rows rows = Format::rows(gathered, q, p);
    __m512 of_unit[kTokens], offsets[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      of_unit[t] = Format::kSuper ? _mm512_setzero_ps() : acc[t][q];
      offsets[t] = _mm512_setzero_ps();
    }
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      const TokenColumns<Format> of_step[2] = {columns(0, s), columns(kTokens - 1, s)};
      __m512i sums[kTokens];
      multiply_rows<Format, kTokens, Format::Lanes::kTwo ? 2 : 4>(p, s, of_step, sums);
      const __m512 factors = Format::factors(rows, s);
      for (int t = 0; t < kTokens; ++t) {
        if constexpr (Format::kBlocks) sums[t] = Lanes::of_blocks(sums[t]);
        if constexpr (Format::kBias != 0) sums[t] = _mm512_add_epi32(sums[t], bias[t][s]);
        of_unit[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[t]), _mm512_mul_ps(factors, scales[t][s]), of_unit[t]);
        if constexpr (Format::kOffsets && Format::kSuper)
          offsets[t] = _mm512_fmadd_ps(Format::offsets(rows, s), minus_values[t][s], offsets[t]);
        else if constexpr (Format::kOffsets)
          of_unit[t] = _mm512_fnmadd_ps(Format::offsets(rows, s), minus_values[t][s], of_unit[t]);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      if constexpr (Format::kSuper) {
        acc[t][q] = _mm512_fmadd_ps(rows.d, of_unit[t], acc[t][q]);
        if constexpr (Format::kOffsets) acc[t][q] = _mm512_fmadd_ps(rows.dmin, offsets[t], acc[t][q]);
      } else {
        acc[t][q] = of_unit[t];
      }
    }
  }
}

// The accumulators of 4 x 4 rows become 16 sums.
template <class Lanes>
__m512 row_sums(const __m512 (&acc)[4]) {
  const __m512 low =
      _mm512_insertf32x4(_mm512_castps128_ps512(Lanes::add_groups(acc[0])), Lanes::add_groups(acc[1]), 1);
  return _mm512_insertf32x4(_mm512_insertf32x4(low, Lanes::add_groups(acc[2]), 2), Lanes::add_groups(acc[3]), 3);
}

// sums[t] = 16 rows times token t. Scales that lie apart are gathered two units ahead, so that their bytes
// have left the store buffer when they are read as vectors.
template <class Format, int kTokens>
void multiply(const RowGroup& w, const TokenStep* const* tokens, const std::byte* ahead, __m512* sums) {
  constexpr int64_t kColumns = Format::kSteps * kStepColumns;
  const int64_t units = w.cols / kColumns;
  const std::byte* first = w.first;
  const TokenStep* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = tokens[t];
  __m512 acc[kTokens][4];
  for (auto& of_token : acc)
    for (__m512& a : of_token) a = _mm512_setzero_ps();
  RowPrefetch prefetch(ahead, w.stride, units);
  Gathered gathered[4];
  for (int64_t u = 0; u < 2 && u < units; ++u) Format::gather(first + u * Format::kUnitBytes, w.stride, gathered[u]);
  for (int64_t u = 0; u < units; ++u) {
    if (u + 2 < units) Format::gather(first + 2 * Format::kUnitBytes, w.stride, gathered[(u + 2) % 4]);
    add_unit<Format, kTokens>(gathered[u % 4], first, w.stride, x, acc);
    prefetch.turn();
    first += Format::kUnitBytes;
    for (const TokenStep*& steps : x) steps += Format::kSteps;
  }
  if constexpr (Format::kHalfUnits) {
    if (w.cols % kColumns != 0) {  // a last block alone: beside it one of zeros
      alignas(64) std::byte unit[16][Format::kUnitBytes] = {};
      for (int r = 0; r < 16; ++r) std::memcpy(unit[r], first + r * w.stride, Format::kUnitBytes / 2);
      Format::gather(unit[0], Format::kUnitBytes, gathered[0]);
      add_unit<Format, kTokens>(gathered[0], unit[0], Format::kUnitBytes, x, acc);
    }
  }
  // Sums of blocks stand twice, in the places of two groups.
  const __m512 unit = _mm512_set1_ps(Format::kBlocks ? Format::kUnit / 2 : Format::kUnit);
  for (int t = 0; t < kTokens; ++t) sums[t] = _mm512_mul_ps(row_sums<typename Format::Lanes>(acc[t]), unit);
}

using Multiply = void (*)(const RowGroup&, const TokenStep* const*, const std::byte*, __m512*);
using Multiplies = Multiply[kMostTokens];

template <class Format>
constexpr Multiplies kMultiplies = {multiply<Format, 1>, multiply<Format, 2>};

using MultiplyLanes = void (*)(const std::byte*, int64_t, const TokenStep* const*, PrefetchStreams*, __m512*);
using LanesMultiplies = MultiplyLanes[kMostTokens];

template <class Format>
constexpr LanesMultiplies kLanesMultiplies = {multiply_lanes<Format, 1>, multiply_lanes<Format, 2>};

// By their number of tokens, less one: rows as the file has them, and repacked ones.
struct FormatKernels {
  const Multiplies* in_place = nullptr;
  const LanesMultiplies* lanes = nullptr;
};
constexpr auto kKernels = quant::table_by_type<FormatKernels, quant::has_integers>([]<DType kType>() -> FormatKernels {
  return {&kMultiplies<typename OnAvx512<kType>::Integer>, &kLanesMultiplies<typename OnAvx512<kType>::Lanes>};
});

const FormatKernels& kernels_of(DType type) {
  const FormatKernels& kernels = kKernels[type];
  if (kernels.in_place == nullptr) fatal(__FILE__, __LINE__, "the integer core has no such format");
  return kernels;
}

// What is prefetched while a group is multiplied: 16 rows as they lie in the file, or a part of streams of
// repacked groups.
struct GroupPrefetch {
  const std::byte* rows = nullptr;
  PrefetchStreams* streams = nullptr;
};

// The sums of a group's rows by 1 or 2 tokens.
void multiply_group(const RowGroup& w, const TokenStep* const* tokens, int64_t count, const GroupPrefetch& prefetch,
                    __m512* sums) {
  const FormatKernels& kernels = kernels_of(w.type);
  if (w.repacked != nullptr)
    return (*kernels.lanes)[count - 1](w.repacked, steps_of(w.cols), tokens, prefetch.streams, sums);
  const Multiply multiply = (*kernels.in_place)[count - 1];
  if (w.rows >= 16) return multiply(w, tokens, prefetch.rows, sums);
  for (int r = 0; r < w.rows; ++r) {  // the end of a matrix: 16 times the same row, which is none too many
    RowGroup same = w;
    same.first += r * w.stride;
    same.stride = 0;
    __m512 row[kMostTokens];
    multiply(same, tokens, nullptr, row);
    for (int64_t t = 0; t < count; ++t) sums[t] = _mm512_mask_mov_ps(sums[t], static_cast<__mmask16>(1u << r), row[t]);
  }
}

// The groups of a job, those of up to two matrices in turns, and what comes after them.
class Groups {
 public:
  Groups(std::initializer_list<RowGroup> first, int64_t count, const Prefetch& next)
      : matrices_(static_cast<int64_t>(first.size())), count_(count), next_(next) {
    std::copy(first.begin(), first.end(), first_);
    if (matrices_ == 1)
      repacked_ = {{first_[0].repacked}, count, first_[0].repacked_bytes, next};
    else
      repacked_ = {{first_[0].repacked, first_[1].repacked}, count, first_[0].repacked_bytes, next};
  }

  // Group i by tokens [t, t + tokens) of x. All groups in ascending order, each with all tokens in ascending
  // order.
  void multiply(int64_t i, const Packed& x, int64_t t, int64_t tokens, __m512* sums) {
    const TokenStep* const of_tokens[kMostTokens] = {token(x, t), token(x, t + tokens - 1)};
    multiply_group(at(i), of_tokens, tokens, t == 0 ? prefetch_beside(i) : GroupPrefetch{}, sums);
  }

 private:
  RowGroup at(int64_t i) const { return matrices_ == 1 ? first_[0].after(i) : first_[i % 2].after(i / 2); }
  // Rows as they lie are prefetched two groups ahead, repacked groups by fours.
  GroupPrefetch prefetch_beside(int64_t i) {
    if (first_[0].repacked != nullptr) return {nullptr, repacked_.prefetch_beside(i)};
    constexpr int64_t kDistance = 2;
    const int64_t later = i + kDistance;
    return {later < count_ ? at(later).first : next_.rows[later - count_], nullptr};
  }

  const int64_t matrices_, count_;
  const Prefetch& next_;
  RowGroup first_[2];
  GroupOrder repacked_;
};

void project(const ProjectJob& job, std::byte*) {
  const Weight& w = *job.w;
  const int64_t left = w.rows - job.row, rows = left < job.panels * kPanelRows ? left : job.panels * kPanelRows;
  Groups groups({RowGroup(w, job.expert, job.row)}, (rows + 15) / 16, job.prefetch);
  for (int64_t i = 0; i * 16 < rows; ++i)
    for (int64_t t = 0; t < job.x->rows; t += kMostTokens) {
      const int64_t tokens = job.x->rows - t < kMostTokens ? job.x->rows - t : kMostTokens;
      __m512 sums[kMostTokens];
      groups.multiply(i, *job.x, t, tokens, sums);
      __m512i v[kMostTokens];
      for (int64_t j = 0; j < tokens; ++j) v[j] = _mm512_castps_si512(sums[j]);
      store_rows(*job.out, t, tokens, job.row + i * 16, first_lanes(rows - i * 16), v, w.scale_of(job.expert));
    }
}

// 16 values of gate and up in one from row on, as bf16 would have them, zeros past F.
__m512 swiglu16(const SwigluJob& job, int64_t row, __m512 gate, __m512 up) {
  const __mmask16 mask = first_lanes(job.gate->rows - row);
  const auto finished = [&](__m512 sum, const Weight& w, const float* bias) {
    const __m512 b = bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, bias + row);
    return _mm512_add_ps(_mm512_mul_ps(sum, _mm512_set1_ps(w.scale_of(job.expert))), b);
  };
  const __m512 product =
      gated16(job.activation, finished(gate, *job.gate, job.gate_bias), finished(up, *job.up, job.up_bias));
  const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_mov_ps(mask, product));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)rounded), 16));
}

void swiglu(const SwigluJob& job, std::byte*) {
  const Packed& mid = *job.mid;
  const int64_t end = job.row + job.units * kPairRows, real = job.gate->rows < end ? job.gate->rows : end;
  Groups groups({RowGroup(*job.gate, job.expert, job.row), RowGroup(*job.up, job.expert, job.row)},
                (real - job.row + 15) / 16 * 2, job.prefetch);
  // Two units at a time: 32 columns of mid have a scale in common.
  for (int64_t row = job.row; row < end; row += 2 * kPairRows)
    for (int64_t t = 0; t < mid.rows; t += kMostTokens) {
      const int64_t tokens = mid.rows - t < kMostTokens ? mid.rows - t : kMostTokens;
      __m512 product[kMostTokens][2] = {};
      for (int i = 0; i < 2 && row + 16 * i < real; ++i) {
        const int64_t at = row + 16 * i, group = (at - job.row) / 16 * 2;
        __m512 gate[kMostTokens], up[kMostTokens];
        groups.multiply(group, *job.x, t, tokens, gate);
        groups.multiply(group + 1, *job.x, t, tokens, up);
        for (int64_t j = 0; j < tokens; ++j) product[j][i] = swiglu16(job, at, gate[j], up[j]);
      }
      for (int64_t j = 0; j < tokens; ++j)
        quantise(product[j], token(mid, t + j)[row / kStepColumns], static_cast<int>(row / 32 % 2));
    }
  // The second half of a last step that mid ends before.
  if (end >= swiglu_units(job.gate->rows) * kPairRows && end % kStepColumns != 0)
    for (int64_t t = 0; t < mid.rows; ++t) quantise({}, token(mid, t)[end / kStepColumns], 1);
}

}  // namespace

const Core kIntegerCore = {packed_bytes, pack, in_place, scratch_bytes, project, swiglu, finish, true};

}  // namespace quire::gemm
