#include "ops/sampling/draw.h"

#include <cmath>

namespace quire::sampling {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
// Blocks between two looks at the best score: their limits are computed together, and grow out of date together.
constexpr int64_t kBatch = 32;

}  // namespace

float Draw::slack(float scaled_logit) const {
  return 1e-4f + (std::abs(best_) + std::abs(scaled_logit)) * 0x1p-21f;
}

void Draw::consider(float logit, int64_t column, uint32_t bits) {
  if (logit == kMinusInf) return;
  const float score = draw_score(logit, inverse_temperature_, gumbel_of(bits));
  if (score < best_ || (score == best_ && column >= column_)) return;
  best_ = score;
  column_ = static_cast<int32_t>(column);
}

void Draw::consider_block(const Row& r, int64_t block, uint32_t limit) {
  const int64_t begin = block * kBlock, n = std::min(kBlock, r.size - begin);
  for_each_bits(
      cpu_, stream_, n, [&](int64_t i) { return id_of(begin + i); },
      [&](int64_t i, uint32_t bits) {
        if (bits <= limit) consider(r.logits[begin + i], begin + i, bits);
      });
}

// A token of logit x reaches the best score only if its noise is at least best - x / T. Noise is -ln(-ln(1 - v)), at
// most -ln v: so v, which is its bits / 2^32, must be at most e^(x / T - best).
void Draw::bound_blocks(const Row& r, int64_t begin, int64_t end, uint32_t* limit) const {
  for (int64_t b = begin; b < end; b += 8) {
    alignas(32) float x[8];
    for (int64_t i = 0; i < 8; ++i) x[i] = b + i < end ? r.block_max[b + i] : kMinusInf;
    for (float& v : x) {
      const float scaled = std::clamp(v * inverse_temperature_, -kLargest, kLargest);
      v = std::min(scaled + slack(scaled) - best_, 0.0f);
    }
    _mm256_store_ps(x, _mm256_mul_ps(exp8(_mm256_load_ps(x)), _mm256_set1_ps(0x1p32f * 1.001f)));
    for (int64_t i = 0; i < std::min<int64_t>(8, end - b); ++i)
      limit[b + i] = x[i] < 0.4f ? 0 : x[i] >= 0x1.fffffep31f ? ~0u : 1 + static_cast<uint32_t>(x[i]);
  }
}

int32_t Draw::from(const Row& r, uint32_t* limit) {
  const int64_t blocks = block_count(r.size), likeliest = first_max(r) / kBlock;
  consider_block(r, likeliest, ~0u);
  for (int64_t begin = 0; begin < blocks; begin += kBatch) {
    const int64_t end = std::min(blocks, begin + kBatch);
    bound_blocks(r, begin, end, limit);
    for (int64_t b = begin; b < end; ++b) {
      if (ids_ == nullptr && (b = cpu_.find(stream_, limit, b, end)) == end) break;
      if (limit[b] != 0) consider_block(r, b, limit[b]);
    }
  }
  return column_;
}

int32_t Draw::from(const Candidate* c, int64_t n, const Softmax& softmax) {
  // As above, with the weights at hand: e^(x / T - best) = weight * e^(max / T - best).
  const float top = std::clamp(softmax.max * inverse_temperature_, -kLargest, kLargest);
  float scale = std::numeric_limits<float>::infinity();
  for_each_bits(
      cpu_, stream_, n, [&](int64_t i) { return id_of(c[i].id); },
      [&](int64_t i, uint32_t bits) {
        if (static_cast<float>(bits) > c[i].weight * scale) return;  // not if that is 0 * infinity
        const float before = best_;
        consider(c[i].logit, c[i].id, bits);
        if (best_ > before) scale = std::exp(top + slack(top) - best_) * (0x1p32f * 1.001f);
      });
  return column_;
}

}  // namespace quire::sampling
