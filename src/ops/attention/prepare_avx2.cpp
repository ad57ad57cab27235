// attention_prepare for bf16 activations and cache. A task is one block's worth of one segment's tokens:
// their cosines and sines are computed once for all heads, and a head's 16 tokens of K or V are a few KiB
// that stay in the first-level cache while they are put in their interleaved places. Loops are written for
// the compiler's vectoriser: fixed lanes, one head at a time, sums in a fixed order.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "ops/attention/kernels.h"

namespace quire::attention {
namespace {

// cos and sin of four angles, rounded to float32 after a polynomial of error below 1e-13 in float64: nearly
// always the correctly rounded value. Angles up to 2^31 quarter turns.
struct CosSin {
  __m128 cos, sin;
};
CosSin cos_sin(__m256d angle, double magnitude) {
  const __m256d turns = _mm256_round_pd(_mm256_mul_pd(angle, _mm256_set1_pd(0.63661977236758134308)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // pi / 2 in two pieces.
  __m256d r = _mm256_fnmadd_pd(turns, _mm256_set1_pd(1.5707963267948966), angle);
  r = _mm256_fnmadd_pd(turns, _mm256_set1_pd(6.123233995736766e-17), r);
  const __m256d r2 = _mm256_mul_pd(r, r);
  const auto horner = [&](std::initializer_list<double> coefficients) {
    __m256d p = _mm256_setzero_pd();
    for (const double c : coefficients) p = _mm256_fmadd_pd(p, r2, _mm256_set1_pd(c));
    return p;
  };
  // Taylor series: (-1)^k / (2k+1)! and (-1)^k / (2k)!, highest first.
  const __m256d s = _mm256_mul_pd(r, horner({1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                                             -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0}));
  const __m256d c = horner({-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0,
                            -1.0 / 720.0, 1.0 / 24.0, -1.0 / 2.0, 1.0});
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

// Per-thread memory: tables of 16 tokens, padded to whole vectors, one head in float32, 16 tokens of a head.
struct Scratch {
  int64_t pairs = 0;  // n_rot / 2, rounded up to 4
  float* cos = nullptr;
  float* sin = nullptr;
  float* head = nullptr;
  bf16* tokens = nullptr;
};

void fill_angles(const Rope& rope, int32_t position, float* cos, float* sin) {
  const int half = rope.n_rot / 2;
  for (int j = 0; j < half; j += 4) {
    alignas(16) float angle[4] = {};
    for (int i = 0; i < 4 && j + i < half; ++i)
      angle[i] = static_cast<float>(position) * rope.inv_freq[static_cast<size_t>(j + i)];
    const CosSin cs = cos_sin(_mm256_cvtps_pd(_mm_load_ps(angle)), static_cast<double>(rope.magnitude));
    _mm_store_ps(cos + j, cs.cos);
    _mm_store_ps(sin + j, cs.sin);
  }
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

void rotate_halves(float* __restrict a, float* __restrict b, const float* __restrict cos,
                   const float* __restrict sin, int half) {
  for (int j = 0; j < half; ++j) {
    const float x = a[j], y = b[j];
    a[j] = x * cos[j] - y * sin[j];
    b[j] = x * sin[j] + y * cos[j];
  }
}

void rotate_interleaved(float* __restrict x, const float* __restrict cos, const float* __restrict sin,
                        int half) {
  for (int j = 0; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cos[j] - b * sin[j];
    x[2 * j + 1] = a * sin[j] + b * cos[j];
  }
}

// One head of q or k of the block's token i: normalised (when there is a weight), rotated, rounded.
void prepare_head(const AttentionPrepareArgs& a, const Scratch& s, int64_t d, int64_t i, const bf16* from,
                  const Tensor& weight, bf16* to) {
  float* x = s.head;
  for (int64_t c = 0; c < d; ++c) x[c] = to_float(from[c]);
  if (!weight.empty()) normalise(x, static_cast<const float*>(weight.data), d, a.eps);
  const int half = a.rope.n_rot / 2;
  if (a.rope.style == Rope::Style::kHalves)
    rotate_halves(x, x + half, s.cos + i * s.pairs, s.sin + i * s.pairs, half);
  else
    rotate_interleaved(x, s.cos + i * s.pairs, s.sin + i * s.pairs, half);
  for (int64_t c = 0; c < d; ++c) to[c] = to_bf16(x[c]);
}

// tokens [count][d] to the key layout: token t's pairs of elements are 32-bit words, 16 words apart.
void write_keys(const bf16* tokens, bf16* block, int64_t slot, int64_t count, int64_t d) {
  for (int64_t c = 0; c < d; c += 2)
    for (int64_t t = 0; t < count; ++t)
      std::memcpy(block + key_offset(slot + t, c), tokens + t * d + c, 2 * sizeof(bf16));
}

// By hand: the compiler leaves this loop scalar, and it was a third of the operator's time.
void interleave(const bf16* even, const bf16* odd, bf16* to, int64_t d) {
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

// `row` is the first token's value head; tokens follow at `pitch` elements.
void write_values(const bf16* row, int64_t pitch, bf16* block, int64_t slot, int64_t count, int64_t d) {
  for (int64_t t = slot; t < slot + count; ++t, row += pitch) {
    bf16* pair = block + value_offset(t, 0, d);
    if (t % 2 == 0 && t + 1 < slot + count) {
      interleave(row, row + pitch, pair, d);
      ++t;
      row += pitch;
    } else {
      for (int64_t c = 0; c < d; ++c) pair[2 * c] = row[c];
    }
  }
}

struct Item {
  const Segment* segment;
  int32_t first, count;  // tokens of the segment, all in one block
};

void prepare_item(const AttentionPrepareArgs& a, const Heads& n, const Scratch& s, const Item& item) {
  const int64_t row = item.segment->row + item.first, d = n.d;
  const int32_t position = item.segment->position + item.first;
  const int32_t block = item.segment->blocks[position / kBlockTokens];
  const int64_t slot = position % kBlockTokens, q_width = a.gate.empty() ? d : 2 * d;
  const auto at = [](const Tensor& t, int64_t i, int64_t column) {
    return static_cast<bf16*>(t.data) + i * t.stride[0] + column;
  };
  for (int64_t i = 0; i < item.count; ++i)
    fill_angles(a.rope, position + static_cast<int32_t>(i), s.cos + i * s.pairs, s.sin + i * s.pairs);
  for (int64_t i = 0; i < item.count; ++i)
    for (int64_t h = 0; h < n.q_heads; ++h) {
      const bf16* from = at(a.q_proj, row + i, h * q_width);
      prepare_head(a, s, d, i, from, a.q_norm, at(a.q, row + i, h * a.q.stride[1]));
      if (!a.gate.empty())
        std::memcpy(at(a.gate, row + i, h * a.gate.stride[1]), from + d,
                    static_cast<size_t>(d) * sizeof(bf16));
    }
  for (int64_t h = 0; h < n.kv_heads; ++h) {
    for (int64_t i = 0; i < item.count; ++i)
      prepare_head(a, s, d, i, at(a.k_proj, row + i, h * d), a.k_norm, s.tokens + i * d);
    write_keys(s.tokens, at(a.kv.k, block, h * a.kv.k.stride[1]), slot, item.count, d);
    write_values(at(a.v_proj, row, h * d), a.v_proj.stride[0], at(a.kv.v, block, h * a.kv.v.stride[1]), slot,
                 item.count, d);
  }
}

}  // namespace

void prepare_avx2(const OpContext& ctx, const AttentionPrepareArgs& a) {
  const Heads n = heads_of(a);
  Workspace::Scope scope(ctx.workspace);
  int64_t most = 0;
  for (const Segment& s : a.segments) most += s.count / kBlockTokens + 2;
  Item* items = scope.take<Item>(most);
  int64_t filled = 0;
  for (const Segment& s : a.segments)
    for (int32_t first = 0; first < s.count;) {
      const int32_t count = std::min(s.count - first, kBlockTokens - (s.position + first) % kBlockTokens);
      items[filled++] = {&s, first, count};
      first += count;
    }

  const int64_t pairs = (a.rope.n_rot / 2 + 3) / 4 * 4;
  const int64_t per_thread = 2 * kBlockTokens * pairs + n.d + kBlockTokens * n.d / 2 + 64;
  float* memory = scope.take<float>((per_thread + 15) / 16 * 16 * ctx.pool.size());
  ctx.pool.parallel_for(filled, 1, [&](int64_t begin, int64_t end, int thread) {
    Scratch s;
    s.pairs = pairs;
    s.cos = memory + (per_thread + 15) / 16 * 16 * thread;
    s.sin = s.cos + kBlockTokens * pairs;
    s.head = s.sin + kBlockTokens * pairs;
    s.tokens = reinterpret_cast<bf16*>(s.head + n.d);
    for (int64_t i = begin; i < end; ++i) prepare_item(a, n, s, items[i]);
  });
}

}  // namespace quire::attention
