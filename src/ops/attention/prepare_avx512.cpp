// attention_prepare for bf16 activations and cache in vectors of 16 floats: heads of whole vectors, of which
// whole vectors rotate. A head is read twice, for its norm and for the rest, and written once; keys go to
// their places 16 tokens by 16 pairs of elements at a time, by a transposition.
#include <immintrin.h>

#include <cmath>

#include "ops/attention/prepare_walk.h"
// clang-format off
#include "ops/simd/vec_avx512.h"
// clang-format on

namespace quire::attention {
namespace {

using simd::Vec512;

struct CosSin {
  __m256 cos, sin;
};

// cos and sin of eight angles: the polynomials and the reduction of the avx2 kernel, to the same bits.
CosSin cos_sin(__m512d angle, double magnitude) {
  const __m512d turns = _mm512_roundscale_pd(_mm512_mul_pd(angle, _mm512_set1_pd(kQuarterTurnsPerUnit)),
                                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512d r = _mm512_fnmadd_pd(turns, _mm512_set1_pd(kQuarterTurn), angle);
  r = _mm512_fnmadd_pd(turns, _mm512_set1_pd(kQuarterTurnRest), r);
  const __m512d r2 = _mm512_mul_pd(r, r);
  const auto horner = [&](const auto& coefficients) {
    __m512d p = _mm512_setzero_pd();
    for (const double c : coefficients) p = _mm512_fmadd_pd(p, r2, _mm512_set1_pd(c));
    return p;
  };
  const __m512d s = _mm512_mul_pd(r, horner(kSine)), c = horner(kCosine);
  const __m512i quadrant = _mm512_cvtpd_epi64(turns), one = _mm512_set1_epi64(1), two = _mm512_set1_epi64(2);
  const __mmask8 swap = _mm512_test_epi64_mask(quadrant, one);
  const auto sign = [&](__m512i q) {  // bit 1 of the quadrant becomes the sign bit
    return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_and_si512(q, two), 62));
  };
  const __m512d m = _mm512_set1_pd(magnitude);
  const __m512d sin = _mm512_xor_pd(_mm512_mask_blend_pd(swap, s, c), sign(quadrant));
  const __m512d cos = _mm512_xor_pd(_mm512_mask_blend_pd(swap, c, s), sign(_mm512_add_epi64(quadrant, one)));
  return {_mm512_cvtpd_ps(_mm512_mul_pd(cos, m)), _mm512_cvtpd_ps(_mm512_mul_pd(sin, m))};
}

__m512 load(const bf16* p) {
  return Vec512::load(reinterpret_cast<const uint16_t*>(p)).v;
}
void store(bf16* p, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
}

float inverse_rms(const bf16* x, int64_t d, float eps) {
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
  for (int64_t c = 0; c < d; c += 32) {
    const __m512 a = load(x + c), b = load(x + c + 16);
    even = _mm512_fmadd_ps(a, a, even);
    odd = _mm512_fmadd_ps(b, b, odd);
  }
  return 1.0f / std::sqrt(Vec512{_mm512_add_ps(even, odd)}.sum() / static_cast<float>(d) + eps);
}

// One head: d and n_rot are multiples of 32.
template <bool kNorm>
void head(const bf16* from, const float* weight, float eps, int64_t d, const Rope& rope, const Rotation& r, bf16* to) {
  const __m512 inv = _mm512_set1_ps(kNorm ? inverse_rms(from, d, eps) : 1.0f);
  const auto value = [&](int64_t c) {
    const __m512 x = load(from + c);
    return kNorm ? _mm512_mul_ps(_mm512_mul_ps(x, inv), _mm512_loadu_ps(weight + c)) : x;
  };
  if (rope.style == Rope::Style::kHalves) {
    const int half = rope.n_rot / 2;
    for (int j = 0; j < half; j += 16) {
      const __m512 x = value(j), y = value(half + j), cos = _mm512_load_ps(r.cos + j), sin = _mm512_load_ps(r.sin + j);
      store(to + j, _mm512_fmsub_ps(x, cos, _mm512_mul_ps(y, sin)));
      store(to + half + j, _mm512_fmadd_ps(x, sin, _mm512_mul_ps(y, cos)));
    }
  } else {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for (int j = 0; j < rope.n_rot; j += 16) {
      const auto pairs = [&](const float* of) {
        return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_load_ps(of + j / 2)));
      };
      const __m512 x = value(j), swapped = _mm512_permute_ps(x, 0xb1);
      // Even lanes x cos - y sin, odd lanes y cos + x sin.
      store(to + j, _mm512_fmaddsub_ps(x, pairs(r.cos), _mm512_mul_ps(swapped, pairs(r.sin))));
    }
  }
  for (int64_t c = rope.n_rot; c < d; c += 16) store(to + c, value(c));
}

struct Avx512 {
  // n_rot / 2 is a multiple of 8.
  static void fill_angles(const Rope& rope, TurnBy by, float* cos, float* sin) {
    __m256 p = _mm256_set1_ps(static_cast<float>(by.position));
    for (int j = 0; j < rope.n_rot / 2; j += 8) {
      if (by.coordinates != nullptr) {
        const __m256i axes =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const int32_t*>(rope.axes.data) + j));
        p = _mm256_cvtepi32_ps(_mm256_i32gather_epi32(by.coordinates, axes, 4));
      }
      const __m256 angle = _mm256_mul_ps(p, _mm256_loadu_ps(static_cast<const float*>(rope.inv_freq.data) + j));
      const CosSin cs = cos_sin(_mm512_cvtps_pd(angle), static_cast<double>(rope.magnitude));
      _mm256_store_ps(cos + j, cs.cos);
      _mm256_store_ps(sin + j, cs.sin);
    }
  }

  static void prepare_head(const AttentionPrepareArgs& a, const PrepareScratch&, int64_t d, const Rotation& r,
                           const bf16* from, const Tensor& weight, bf16* to) {
    if (weight.empty())
      head<false>(from, nullptr, a.eps, d, a.rope, r, to);
    else
      head<true>(from, static_cast<const float*>(weight.data), a.eps, d, a.rope, r, to);
  }

  // tokens [count][d] to the key layout: 16 pairs of elements of a token are 16 words, in 16 rows of a block.
  static void write_keys(const bf16* tokens, bf16* block, int64_t slot, int64_t count, int64_t d) {
    const auto lanes = static_cast<__mmask16>(((1u << count) - 1u) << slot);
    for (int64_t c = 0; c < d; c += 32) {
      Vec512 v[16];
      for (int64_t t = 0; t < kBlockTokens; ++t)
        v[t].v = t >= slot && t < slot + count ? _mm512_loadu_ps(tokens + (t - slot) * d + c) : _mm512_setzero_ps();
      simd::transpose(v);
      for (int64_t i = 0; i < 16; ++i) _mm512_mask_storeu_ps(block + key_offset(0, c + 2 * i), lanes, v[i].v);
    }
  }

  static void interleave(const bf16* even, const bf16* odd, bf16* to, int64_t d) {
    // Unpacked lanes hold elements 0-3, 8-11, ... and 4-7, 12-15, ...
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int64_t c = 0; c < d; c += 32) {
      const __m512i e = _mm512_loadu_si512(even + c), o = _mm512_loadu_si512(odd + c);
      const __m512i low = _mm512_unpacklo_epi16(e, o), high = _mm512_unpackhi_epi16(e, o);
      _mm512_storeu_si512(to + 2 * c, _mm512_permutex2var_epi64(low, first, high));
      _mm512_storeu_si512(to + 2 * c + 32, _mm512_permutex2var_epi64(low, second, high));
    }
  }

  // A token's values to its halves of the pairs; the other halves stay as they are.
  static void write_single(const bf16* row, bool odd, bf16* pair, int64_t d) {
    for (int64_t c = 0; c < d; c += 16) {
      __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + c)));
      if (odd) x = _mm512_slli_epi32(x, 16);
      _mm512_mask_storeu_epi16(pair + 2 * c, odd ? 0xaaaa'aaaau : 0x5555'5555u, x);
    }
  }
};

}  // namespace

void prepare_avx512(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& i) {
  prepare<Avx512>(a, s, i);
}

}  // namespace quire::attention
