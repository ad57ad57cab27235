// The AVX2 core: float32 products of 8 columns at a time with weights decoded to float32 exactly. For
// machines without AVX-512, for F32 and F16 weights, and for float32 tokens.
#include "core/m256.h"

#include <algorithm>
#include <cmath>

#include "ops/gemm/core.h"
#include "ops/gemm/formats/all.h"
#include "ops/gemm/lane_core.h"
#include "ops/gemm/simd_avx2.h"
#include "quant/format_table.h"

namespace quire::gemm {
namespace {

constexpr auto kDecoders =
    quant::table_by_type<quant::Decoder, quant::rounds_to_bf16>([]<DType kType>() { return OnAvx2<kType>::kRows; });

// F32 and F16 have the reference alone.
quant::Decoder decoder_of(DType type) {
  const quant::Decoder decode = kDecoders[type];
  return decode != nullptr ? decode : quant::find_format(type)->decode;
}

struct FloatLanes {
  using Elem = float;
  using Acc = __m256;
  // Four rows by three tokens: their accumulators, and what is multiplied, fill 16 registers.
  static constexpr int kLanes = 8, kTokens = 3;
  static constexpr bool kWidens = true;
  static constexpr int kFp8Tokens = 3;  // so many meet codes that are widened as often as three tokens need
  static constexpr DType kType = DType::kF32;

  static Acc zero() { return _mm256_setzero_ps(); }
  static __m256 load(const Elem* p) { return _mm256_loadu_ps(p); }
  static __m256 load(const uint16_t* p) { return simd::Vec256::load(p).v; }  // bf16
  static Acc madd(Acc acc, __m256 w, __m256 x) { return _mm256_fmadd_ps(w, x, acc); }
  static float sum(Acc a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  static void load_row(const Tensor& x, int64_t at, int64_t cols, Elem* to) {
    if (x.dtype == DType::kBF16)
      return decode_bf16(reinterpret_cast<const std::byte*>(static_cast<const uint16_t*>(x.data) + at), cols, to);
    for (int64_t i = 0; i < cols; ++i) to[i] = load_float(x, at + i);
  }

  // For many tokens four rows lie side by side, a vector of each in turn: what is multiplied at a time is then one run
  // of memory, which the first-level cache has room for whatever the length of a row.
  static LaneRows<Elem> decode(const Weight& w, int64_t expert, int64_t row, int rows, bool many, PrefetchAhead& ahead,
                               Elem* scratch) {
    LaneRows<Elem> out;
    const std::byte* first = w.row(row, expert);
    const int64_t stride = w.row_bytes(), width = padded(w.cols);
    const bool in_file = w.dtype == DType::kF32 && w.cols == width;
    out.step = many && !in_file ? 4 * kLanes : kLanes;
    for (int r = 0; r < 16; ++r) {
      const int from = r < rows ? r : 0;
      if (in_file) {
        out.first[r] = reinterpret_cast<const float*>(first + from * stride);
        continue;
      }
      Elem* const to = scratch + (many ? from / 4 * 4 * width + from % 4 * kLanes : from * width);
      out.first[r] = to;
      if (r < rows) decode_row(w, first + r * stride, width, out.step, ahead, to);
    }
    out.decoded = !in_file;
    return out;
  }

  // A vector every `step`, and zeros to `width`.
  static void decode_row(const Weight& w, const std::byte* from, int64_t width, int64_t step, PrefetchAhead& ahead,
                         float* to) {
    alignas(32) float some[kDecodeTurn];
    const quant::Decoder decode = decoder_of(w.dtype);
    for (int64_t k = 0; k < width; k += kDecodeTurn, ahead.turn()) {
      const int64_t cols = std::min(kDecodeTurn, w.cols - k), all = std::min(kDecodeTurn, width - k);
      float* const piece = step == kLanes ? to + k : some;
      decode(from + dtype_bytes(w.dtype, k), cols, piece);
      std::fill(piece + cols, piece + all, 0.0f);
      if (step == kLanes) continue;
      for (int64_t i = 0; i < all; i += kLanes, to += step) _mm256_store_ps(to, _mm256_load_ps(some + i));
    }
  }
  static void store(const Epilogue& out, int64_t t, int64_t n, int64_t count, const float* sums, float scale) {
    store_row16(out, t, n, count, {_mm256_load_ps(sums), _mm256_load_ps(sums + 8)}, scale);
  }
  static void store_swiglu(const float* gate, const float* up, const SwigluJob& job, Elem* to) {
    const bool round_to_bf16 = job.round_to_bf16;
    if (round_to_bf16 && rounds_to_bf16(job.gate->dtype)) {
      for (int i = 0; i < 16; i += 8)
        _mm256_storeu_ps(to + i, swiglu8(job.activation, _mm256_load_ps(gate + i), _mm256_load_ps(up + i)));
      return;
    }
    // F32 and F16 weights and float32 tokens, which no CPU has other kernels for: libm, as ever.
    for (int i = 0; i < 16; ++i) {
      const float p = gated(job.activation, gate[i], up[i]);
      to[i] = round_to_bf16 ? to_float(to_bf16(p)) : p;
    }
  }
};

// FP8 as decode_fp8 has it, in registers.
template <>
struct LaneCursor<FloatLanes, Fp8Code> {
  static constexpr int64_t kRun = 128 / FloatLanes::kLanes;  // a block
  const Fp8Code* row;                                        // the block that comes next
  int64_t step;
  __m256 scale = {};
  const Fp8Code* codes = nullptr;  // where vector 0 would be, if what lies between were codes alone

  void enter(int64_t s) {
    float factor;
    std::memcpy(&factor, row, 4);
    scale = _mm256_set1_ps(0x1p8f * factor);
    codes = row + 4 - s * FloatLanes::kLanes;
    row += 132;
  }
  __m256 load(int64_t s) const {
    const __m128i at = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + s * FloatLanes::kLanes));
    const __m128i moved = _mm_slli_epi16(_mm_cvtepi8_epi16(at), 7);
    return _mm256_mul_ps(scale, _mm256_cvtph_ps(_mm_and_si128(moved, _mm_set1_epi16(static_cast<int16_t>(0xbfff)))));
  }
};

}  // namespace

const Core kBaseCore = kLaneCore<FloatLanes>;

}  // namespace quire::gemm
