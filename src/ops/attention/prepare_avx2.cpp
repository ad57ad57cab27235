// attention_prepare for bf16 activations and cache, any head. Loops are written for the compiler's
// vectoriser: fixed lanes, one head at a time, sums in a fixed order.
#include "core/m256.h"

#include <cmath>
#include <cstring>

#include "ops/attention/prepare_walk.h"

namespace quire::attention {
namespace {

// cos and sin of four angles, rounded to float32 after a polynomial of error below 1e-13 in float64: nearly
// always the correctly rounded value. Angles up to 2^31 quarter turns.
struct CosSin {
  __m128 cos, sin;
};
CosSin cos_sin(__m256d angle, double magnitude) {
  const __m256d turns = _mm256_round_pd(_mm256_mul_pd(angle, _mm256_set1_pd(kQuarterTurnsPerUnit)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256d r = _mm256_fnmadd_pd(turns, _mm256_set1_pd(kQuarterTurn), angle);
  r = _mm256_fnmadd_pd(turns, _mm256_set1_pd(kQuarterTurnRest), r);
  const __m256d r2 = _mm256_mul_pd(r, r);
  const auto horner = [&](const auto& coefficients) {
    __m256d p = _mm256_setzero_pd();
    for (const double c : coefficients) p = _mm256_fmadd_pd(p, r2, _mm256_set1_pd(c));
    return p;
  };
  const __m256d s = _mm256_mul_pd(r, horner(kSine)), c = horner(kCosine);
  const __m256i quadrant = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(turns));
  const __m256i one = _mm256_set1_epi64x(1), two = _mm256_set1_epi64x(2);
  const __m256d swap = _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(quadrant, one), one));
  const auto sign = [&](__m256i q) {  // bit 1 of the quadrant becomes the sign bit
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_and_si256(q, two), 62));
  };
  const __m256d sin = _mm256_xor_pd(_mm256_blendv_pd(s, c, swap), sign(quadrant));
  const __m256d cos = _mm256_xor_pd(_mm256_blendv_pd(c, s, swap), sign(_mm256_add_epi64(quadrant, one)));
  const __m256d m = _mm256_set1_pd(magnitude);
  return {_mm256_cvtpd_ps(_mm256_mul_pd(cos, m)), _mm256_cvtpd_ps(_mm256_mul_pd(sin, m))};
}

void normalise(float* __restrict x, const float* __restrict weight, int64_t d, float eps) {
  float lanes[16] = {};
  int64_t c = 0;
  for (; c + 16 <= d; c += 16)
    for (int i = 0; i < 16; ++i) lanes[i] += x[c + i] * x[c + i];
  for (int i = 0; c + i < d; ++i) lanes[i] += x[c + i] * x[c + i];
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  const float inv = 1.0f / std::sqrt(lanes[0] / static_cast<float>(d) + eps);
  for (int64_t i = 0; i < d; ++i) x[i] = x[i] * inv * weight[i];
}

void rotate_halves(float* __restrict a, float* __restrict b, const float* __restrict cos, const float* __restrict sin,
                   int half) {
  for (int j = 0; j < half; ++j) {
    const float x = a[j], y = b[j];
    a[j] = x * cos[j] - y * sin[j];
    b[j] = x * sin[j] + y * cos[j];
  }
}

void rotate_interleaved(float* __restrict x, const float* __restrict cos, const float* __restrict sin, int half) {
  for (int j = 0; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cos[j] - b * sin[j];
    x[2 * j + 1] = a * sin[j] + b * cos[j];
  }
}

struct Avx2 {
  static void fill_angles(const Rope& rope, TurnBy by, float* cos, float* sin) {
    const int half = rope.n_rot / 2;
    for (int j = 0; j < half; j += 4) {
      alignas(16) float angle[4] = {};
      for (int i = 0; i < 4 && j + i < half; ++i)
        angle[i] = static_cast<float>(by.on(rope, j + i)) * static_cast<const float*>(rope.inv_freq.data)[j + i];
      const CosSin cs = cos_sin(_mm256_cvtps_pd(_mm_load_ps(angle)), static_cast<double>(rope.magnitude));
      _mm_store_ps(cos + j, cs.cos);
      _mm_store_ps(sin + j, cs.sin);
    }
  }

  static void prepare_head(const AttentionPrepareArgs& a, const PrepareScratch& s, int64_t d, const Rotation& r,
                           const bf16* from, const Tensor& weight, bf16* to) {
    float* const x = s.head;
    for (int64_t c = 0; c < d; ++c) x[c] = to_float(from[c]);
    if (!weight.empty()) normalise(x, static_cast<const float*>(weight.data), d, a.eps);
    const int half = a.rope.n_rot / 2;
    if (a.rope.style == Rope::Style::kHalves)
      rotate_halves(x, x + half, r.cos, r.sin, half);
    else
      rotate_interleaved(x, r.cos, r.sin, half);
    for (int64_t c = 0; c < d; ++c) to[c] = to_bf16(x[c]);
  }

  // tokens [count][d] to the key layout: token t's pairs of elements are 32-bit words, 16 words apart.
  static void write_keys(const bf16* tokens, bf16* block, int64_t slot, int64_t count, int64_t d) {
    for (int64_t c = 0; c < d; c += 2)
      for (int64_t t = 0; t < count; ++t)
        std::memcpy(block + key_offset(slot + t, c), tokens + t * d + c, 2 * sizeof(bf16));
  }

  // By hand: the compiler leaves this loop scalar, and it was a third of the operator's time.
  static void interleave(const bf16* even, const bf16* odd, bf16* to, int64_t d) {
    int64_t c = 0;
    for (; c + 16 <= d; c += 16) {
      const __m256i e = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + c));
      const __m256i o = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + c));
      const __m256i low = _mm256_unpacklo_epi16(e, o), high = _mm256_unpackhi_epi16(e, o);
      auto* at = reinterpret_cast<__m256i*>(to + 2 * c);
      _mm256_storeu_si256(at, _mm256_permute2x128_si256(low, high, 0x20));
      _mm256_storeu_si256(at + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
    for (; c < d; ++c) {
      to[2 * c] = even[c];
      to[2 * c + 1] = odd[c];
    }
  }

  static void write_single(const bf16* row, bool odd, bf16* pair, int64_t d) {
    for (int64_t c = 0; c < d; ++c) pair[2 * c + odd] = row[c];
  }
};

}  // namespace

void prepare_avx2(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& i) {
  prepare<Avx2>(a, s, i);
}

}  // namespace quire::attention
