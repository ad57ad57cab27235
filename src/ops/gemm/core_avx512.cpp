// The AVX-512 core: vdpbf16ps over 32 columns at a time. For machines without AMX.
#include <immintrin.h>

#include "ops/gemm/core.h"
#include "ops/gemm/decode_avx512.h"
#include "ops/gemm/lane_core.h"
#include "ops/gemm/simd_avx512.h"

namespace quire::gemm {
namespace {

struct Bf16Lanes {
  using Elem = uint16_t;
  using Acc = __m512;
  static constexpr int kLanes = 32, kTokens = 4;
  static constexpr bool kWidens = false;
  static constexpr DType kType = DType::kBF16;

  static Acc zero() { return _mm512_setzero_ps(); }
  static __m512i load(const Elem* p) { return _mm512_loadu_si512(p); }
  static Acc madd(Acc acc, __m512i w, __m512i x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }
  static float sum(Acc a) { return _mm512_reduce_add_ps(a); }

  static void load_row(const Tensor& x, int64_t at, int64_t cols, Elem* to) {
    if (x.dtype == DType::kBF16) {
      std::memcpy(to, static_cast<const uint16_t*>(x.data) + at, static_cast<size_t>(cols) * 2);
      return;
    }
    const float* from = static_cast<const float*>(x.data) + at;
    for (int64_t i = 0; i < cols; i += 16) {
      const __mmask16 mask = first_lanes(cols - i);
      const __m256bh v = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from + i));
      _mm256_mask_storeu_epi16(to + i, mask, (__m256i)v);
    }
  }

  static LaneRows<Elem> decode(const Weight& w, int64_t expert, int64_t row, int rows, bool, PrefetchAhead& ahead,
                               Elem* scratch) {
    LaneRows<Elem> out;
    const std::byte* first = w.row(row, expert);
    if (w.dtype == DType::kBF16 && w.cols % 32 == 0) {  // straight from the file
      for (int r = 0; r < 16; ++r)
        out.first[r] = reinterpret_cast<const Elem*>(first + (r < rows ? r : 0) * w.row_bytes());
      out.step = 32;
      return out;
    }
    const DecodeTiles decode_tiles = find_decoder(w.dtype);
    static_assert(kDecodeTurn == kDecodeChunk);
    for (int64_t k = 0; k < w.cols; k += kDecodeChunk) {
      const int64_t count = w.cols - k < kDecodeChunk ? w.cols - k : kDecodeChunk;
      for (int r = 0; r < rows; ++r, ahead.turn())
        decode_tiles(first + r * w.row_bytes(), w.row_bytes(), 1, k, count, scratch + k * 16 + r * 32, {});
    }
    out.decoded = true;
    for (int r = 0; r < 16; ++r) out.first[r] = scratch + (r < rows ? r : 0) * 32;
    out.step = 512;
    return out;
  }

  static void store(const Epilogue& out, int64_t t, int64_t n, int64_t count, const float* sums, float scale) {
    const __m512i v = _mm512_load_si512(sums);
    store_rows(out, t, 1, n, first_lanes(count), &v, scale);
  }
  static void store_swiglu(const float* gate, const float* up, const SwigluJob& job, Elem* to) {
    const __m512 p = gated16(job.activation, _mm512_load_ps(gate), _mm512_load_ps(up));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(p));
  }
};

}  // namespace

const Core kAvx512Core = kLaneCore<Bf16Lanes>;

}  // namespace quire::gemm
