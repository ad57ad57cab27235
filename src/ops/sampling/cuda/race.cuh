// The draw: which token has the largest score (draw_score, gumbel.h). Scores cost two logarithms of our own and two
// divisions, so they are computed only of the tokens that can have the largest: an approximation of the noise, from the
// hardware's logarithm, bounds it on both sides.
#pragma once

#include "ops/sampling/cuda/blocks.cuh"
#include "ops/sampling/cuda/narrow.cuh"
#include "ops/sampling/gumbel.h"

namespace quire::cuda {

// A score and the column that has it, as a number that is larger for a larger score and, among equals, for the lower
// column. 0: none.
using ScoredColumn = unsigned long long;

__device__ __forceinline__ int32_t column_of(ScoredColumn s) {
  return static_cast<int32_t>(~static_cast<uint32_t>(s));
}
inline __device__ __noinline__ ScoredColumn exact_score(float logit, float inverse_temperature, uint32_t bits,
                                                        int column) {
  const float score = draw_score(logit, inverse_temperature, gumbel_of(bits));
  return static_cast<ScoredColumn>(ordered(score)) << 32 | ~static_cast<uint32_t>(column);
}
__device__ __forceinline__ ScoredColumn warp_best(ScoredColumn x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const ScoredColumn other = __shfl_xor_sync(~0u, x, step);
    x = other > x ? other : x;
  }
  return x;
}

// The draw among tokens that a warp looks at, 512 at a time.
class Race {
 public:
  __device__ Race(const SampleParams& p, const SampleRow& row)
      : ids(p.ids),
        vocab(p.vocab),
        key0(static_cast<uint32_t>(row.seed)),
        key1(static_cast<uint32_t>(row.seed >> 32)),
        position0(static_cast<uint32_t>(row.position)),
        position1(static_cast<uint32_t>(static_cast<uint64_t>(row.position) >> 32)),
        inverse_temperature(1.0f / row.temperature) {}

  // Adds a block's tokens, whose greatest logit is `most`; those with a logit of -infinity are not in the draw.
  __device__ __forceinline__ void add(const float (&x)[kLogitsPerLane], float most, int block, int lane) {
    // No noise exceeds 22.88.
    if (__fmaf_rn(most, inverse_temperature, 22.9f) < floor_of(bound)) return;
    uint32_t bits[kLogitsPerLane];
    draw_bits(bits, block, lane);
    float upper = -INFINITY, lower = -INFINITY;
#pragma unroll
    for (int i = 0; i < kLogitsPerLane; ++i) {
      const float u = upper_bound(x[i], bits[i]);
      upper = fmaxf(upper, u);
      // ln(-ln(1 - v) / v) <= 3.2 v for all v = bits / 2^32.
      lower = fmaxf(lower, __fmaf_rn(__uint2float_rn(bits[i]), -3.2f * 0x1p-32f, x[i] > -INFINITY ? u : -INFINITY));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) lower = fmaxf(lower, __shfl_xor_sync(~0u, lower, step));
    bound = fmaxf(bound, lower);
    const float floor = floor_of(bound);
    if (upper < floor) return;
#pragma unroll
    for (int i = 0; i < kLogitsPerLane; ++i) {
      if (!(x[i] > -INFINITY) || upper_bound(x[i], bits[i]) < floor) continue;
      const ScoredColumn s = exact_score(x[i], inverse_temperature, bits[i], token_of(block, lane, i));
      best = s > best ? s : best;
    }
  }
  __device__ void add_one(float logit, int column) {
    const uint32_t bits =
        noise_bits(static_cast<uint64_t>(key1) << 32 | key0,
                   static_cast<int64_t>(static_cast<uint64_t>(position1) << 32 | position0), id_of(column));
    const ScoredColumn s = exact_score(logit, inverse_temperature, bits, column);
    best = s > best ? s : best;
  }

  ScoredColumn best = 0;  // of this thread

 private:
  __device__ __forceinline__ int32_t id_of(int column) const {
    return ids == nullptr ? column : column < vocab ? ids[column] : 0;
  }
  // Noise is at most -ln v, which is what this adds for a v of at most its own.
  __device__ __forceinline__ float upper_bound(float logit, uint32_t bits) const {
    float log2;
    asm("lg2.approx.f32 %0, %1;" : "=f"(log2) : "f"(__uint2float_rn(bits)));
    constexpr float kLn2 = 0.693147181f;
    return __fmaf_rn(log2, -kLn2, __fmaf_rn(logit, inverse_temperature, 32 * kLn2));
  }
  // What an upper bound must reach for its score to reach `reached`. Not less than anything if that is infinite.
  __device__ __forceinline__ static float floor_of(float reached) {
    return reached - (1e-4f + fabsf(reached) * 0x1p-20f);
  }

  // The random bits of a lane's tokens. Four groups abreast share the round's keys.
  __device__ __forceinline__ void draw_bits(uint32_t (&bits)[kLogitsPerLane], int block, int lane) const {
    uint32_t group[4], word[4][4];
    if (ids == nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) group[j] = static_cast<uint32_t>(token_of(block, lane, 4 * j)) / 4;
      philox(group, word);
#pragma unroll
      for (int i = 0; i < kLogitsPerLane; ++i) bits[i] = word[i / 4][i % 4];
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t id[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        id[e] = static_cast<uint32_t>(id_of(token_of(block, lane, 4 * j + e)));
        group[e] = id[e] / 4;
      }
      philox(group, word);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t which = id[e] % 4;
        bits[4 * j + e] = which < 2 ? (which == 0 ? word[e][0] : word[e][1]) : which == 2 ? word[e][2] : word[e][3];
      }
    }
  }
  // noise_group of four groups.
  __device__ __forceinline__ void philox(const uint32_t (&group)[4], uint32_t (&c)[4][4]) const {
    uint32_t k0 = key0, k1 = key1;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      c[j][0] = position0;
      c[j][1] = position1;
      c[j][2] = group[j];
      c[j][3] = 0;
    }
#pragma unroll
    for (int round = 0; round < 10; ++round) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint64_t a = uint64_t{0xd2511f53} * c[j][0], b = uint64_t{0xcd9e8d57} * c[j][2];
        c[j][0] = static_cast<uint32_t>(b >> 32) ^ c[j][1] ^ k0;
        c[j][1] = static_cast<uint32_t>(b);
        c[j][2] = static_cast<uint32_t>(a >> 32) ^ c[j][3] ^ k1;
        c[j][3] = static_cast<uint32_t>(a);
      }
      k0 += 0x9e3779b9;
      k1 += 0xbb67ae85;
    }
  }

  const int32_t* ids;
  int vocab;
  uint32_t key0, key1, position0, position1;
  float inverse_temperature;
  float bound = -INFINITY;  // which some score that the warp has seen reaches
};

}  // namespace quire::cuda
