// The attention references against formulas written the other way round: contiguous keys and values, one
// token at a time. The kernels are compared with the references by the conformance suite.
#include "ops/attention/attention.h"
#include "ops/attention/scale.h"

#include <gtest/gtest.h>

#include <complex>
#include <random>

namespace quire {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Fixture {
  ThreadPool pool{2};
  Workspace workspace;
  OpContext context{pool, workspace, {Device::kReference}};
};

// What makes an E4M3 cache exact for whoever reads it: every code times every scale is a number of bf16.
TEST(Scales, EveryCodeTimesEveryScaleIsExactInBf16) {
  for (uint32_t s = 0; s <= attention::kMostScale; ++s) {
    const float scale = attention::scale_of(s);
    ASSERT_EQ(scale, std::ldexp(8 + static_cast<float>(s % 8), static_cast<int>(s / 8) - 27)) << s;
    for (int code = 0; code < 0x7f; ++code) {
      const float x = to_float(e4m3{static_cast<uint8_t>(code)}) * scale;
      ASSERT_EQ(to_float(to_bf16(x)), x) << code << " at scale " << s;
      ASSERT_TRUE(x == 0 || std::isnormal(x));
    }
  }
  EXPECT_TRUE(std::isnan(attention::scale_of(attention::kNoNumber)));
}

TEST(Scales, TheLargestFitsAndIsRoundedLeast) {
  std::mt19937 gen(3);
  std::uniform_real_distribution<float> log2_of(-16.0f, 16.0f);
  double squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const float x = std::exp2(log2_of(gen));
    const float scale = attention::scale_of(attention::choose_scale(std::bit_cast<uint32_t>(x)));
    ASSERT_LE(x, 448 * scale);
    ASSERT_GT(x, 224 * scale);
    const float kept =
        to_float(to_e4m3(x * attention::inverse_scale_of(attention::choose_scale(std::bit_cast<uint32_t>(x))))) * scale;
    const double error = std::abs(static_cast<double>(kept) / static_cast<double>(x) - 1);
    // Below what the least scale reaches there are fewer than eight to choose from.
    ASSERT_LT(error, x < 448 * attention::scale_of(0) ? 0x1p-4 : 0.0268) << x;
    for (uint32_t s = 0; s <= attention::kMostScale; s += 37) {
      const float other = attention::scale_of(s);
      if (x > 448 * other || x <= 224 * other) continue;
      ASSERT_LE(
          error,
          std::abs(static_cast<double>(to_float(to_e4m3(x / other)) * other) / static_cast<double>(x) - 1) + 1e-6);
    }
    squares += error * error;
  }
  EXPECT_LT(std::sqrt(squares / kCount), 0.0095) << "a power of two would have 0.025";
}

TEST(Scales, OfExtremes) {
  const auto chosen = [](float x) { return attention::choose_scale(std::bit_cast<uint32_t>(x)); };
  EXPECT_EQ(chosen(0.0f), 0u);
  EXPECT_EQ(chosen(1e-38f), 0u);
  EXPECT_EQ(chosen(0x1p-149f), 0u);
  EXPECT_EQ(chosen(1e-6f), 0u) << "in lower octaves of the least scale";
  EXPECT_EQ(chosen(attention::kMostMagnitude), attention::kMostScale);
  EXPECT_EQ(chosen(100353.0f), attention::kMostScale) << "saturates";
  EXPECT_EQ(chosen(std::numeric_limits<float>::max()), attention::kMostScale);
  EXPECT_EQ(chosen(std::numeric_limits<float>::infinity()), attention::kNoNumber);
  EXPECT_EQ(chosen(kNan), attention::kNoNumber);
}

// A paged cache in float32 whose untouched elements are NaN.
struct Cache {
  int64_t kv_heads, d;
  std::vector<float> k, v;
  KvLayer layer;
  Cache(int64_t blocks, int64_t heads, int64_t dim)
      : kv_heads(heads),
        d(dim),
        k(static_cast<size_t>(blocks * heads * 16 * dim), kNan),
        v(k),
        layer{make_tensor(k.data(), {blocks, heads, 16 * dim}), make_tensor(v.data(), {blocks, heads, 16 * dim})} {}
  // The layout written out by hand, not through key_offset and value_offset.
  float& key(const int32_t* blocks, int64_t pos, int64_t head, int64_t c) {
    return k[static_cast<size_t>((blocks[pos / 16] * kv_heads + head) * 16 * d + c / 2 * 32 + pos % 16 * 2 + c % 2)];
  }
  float& value(const int32_t* blocks, int64_t pos, int64_t head, int64_t c) {
    return v[static_cast<size_t>((blocks[pos / 16] * kv_heads + head) * 16 * d + pos % 16 / 2 * 2 * d + c * 2 +
                                 pos % 2)];
  }
};

std::vector<float> random_floats(std::mt19937& gen, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& f : x) f = normal(gen);
  return x;
}

struct PrepareCase {
  const char* name;
  Rope::Style style;
  int d, n_rot;
  bool gated, normed;
  float magnitude;
};

class Prepare : public testing::TestWithParam<PrepareCase> {};

TEST_P(Prepare, MatchesComplexRotation) {
  const PrepareCase& p = GetParam();
  Fixture f;
  std::mt19937 gen(7);
  const int64_t rows = 5, heads = 4, kv_heads = 2, d = p.d, q_cols = heads * d * (p.gated ? 2 : 1);
  auto q_proj = random_floats(gen, rows * q_cols), k_proj = random_floats(gen, rows * kv_heads * d),
       v_proj = random_floats(gen, rows * kv_heads * d), norm = random_floats(gen, d);
  std::vector<float> freq;
  for (int j = 0; j < p.n_rot / 2; ++j)
    freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(j) / static_cast<float>(p.n_rot)));
  std::vector<float> q(static_cast<size_t>(rows * heads * d), kNan), gate(q);
  Cache cache(4, kv_heads, d);
  const std::vector<int32_t> blocks = {3, 1};
  // Rows 1 ... 3 are positions 15 ... 17; rows 0 and 4 are padding.
  const Segment segment{.row = 1, .count = 3, .position = 15};
  AttentionPrepareArgs a;
  a.q_proj = make_tensor(q_proj.data(), {rows, q_cols});
  a.k_proj = make_tensor(k_proj.data(), {rows, kv_heads * d});
  a.v_proj = make_tensor(v_proj.data(), {rows, kv_heads * d});
  if (p.normed) a.q_norm = a.k_norm = make_tensor(norm.data(), {d});
  a.rope = {p.style, p.n_rot, make_tensor(freq.data(), {p.n_rot / 2}), p.magnitude};
  a.segments = {&segment, 1, 0, blocks.data(), 2};
  a.q = make_tensor(q.data(), {rows, heads, d});
  if (p.gated) a.gate = make_tensor(gate.data(), {rows, heads, d});
  a.kv = cache.layer;
  attention_prepare(f.context, a);

  // Normalised and rotated with complex numbers, in place in the projection.
  const auto expected = [&](const float* x, int64_t position) {
    std::vector<double> y(x, x + d);
    if (p.normed) {
      double mean = 0;
      for (double e : y) mean += e * e / static_cast<double>(d);
      for (int64_t c = 0; c < d; ++c)
        y[static_cast<size_t>(c)] *= norm[static_cast<size_t>(c)] / std::sqrt(mean + 1e-6);
    }
    for (int j = 0; j < p.n_rot / 2; ++j) {
      const bool halves = p.style == Rope::Style::kHalves;
      const size_t at = static_cast<size_t>(halves ? j : 2 * j),
                   to = at + static_cast<size_t>(halves ? p.n_rot / 2 : 1);
      const std::complex<double> z =
          std::complex<double>(y[at], y[to]) *
          std::polar<double>(p.magnitude, static_cast<double>(position) * freq[static_cast<size_t>(j)]);
      y[at] = z.real();
      y[to] = z.imag();
    }
    return y;
  };
  for (int64_t r = 0; r < rows; ++r) {
    const bool used = r >= 1 && r <= 3;
    for (int64_t h = 0; h < heads; ++h) {
      const float* from = &q_proj[static_cast<size_t>(r * q_cols + h * d * (p.gated ? 2 : 1))];
      const auto want = expected(from, 14 + r);
      for (int64_t c = 0; c < d; ++c) {
        const auto at = static_cast<size_t>((r * heads + h) * d + c);
        if (!used) {
          EXPECT_TRUE(std::isnan(q[at])) << "row " << r << " is padding";
          continue;
        }
        EXPECT_NEAR(q[at], want[static_cast<size_t>(c)], 2e-5) << "row " << r << " head " << h << " c " << c;
        EXPECT_TRUE(!p.gated || gate[at] == from[d + c]);
      }
    }
    for (int64_t h = 0; used && h < kv_heads; ++h) {
      const auto want = expected(&k_proj[static_cast<size_t>((r * kv_heads + h) * d)], 14 + r);
      for (int64_t c = 0; c < d; ++c) {
        EXPECT_NEAR(cache.key(blocks.data(), 14 + r, h, c), want[static_cast<size_t>(c)], 2e-5);
        EXPECT_EQ(cache.value(blocks.data(), 14 + r, h, c), v_proj[static_cast<size_t>((r * kv_heads + h) * d + c)]);
      }
    }
  }
  int64_t written = 0;
  for (float x : cache.k) written += !std::isnan(x);
  EXPECT_EQ(written, 3 * kv_heads * d) << "other positions of the cache were touched";
}

INSTANTIATE_TEST_SUITE_P(Styles, Prepare,
                         testing::Values(PrepareCase{"llama", Rope::Style::kInterleaved, 64, 64, false, false, 1.0f},
                                         PrepareCase{"qwen2", Rope::Style::kHalves, 64, 64, false, false, 1.0f},
                                         PrepareCase{"qwen3", Rope::Style::kHalves, 128, 128, false, true, 1.0f},
                                         PrepareCase{"qwen35", Rope::Style::kHalves, 256, 64, true, true, 1.0f},
                                         PrepareCase{"yarn", Rope::Style::kHalves, 32, 32, false, true, 1.2f},
                                         PrepareCase{"norope", Rope::Style::kHalves, 48, 0, false, true, 1.0f},
                                         PrepareCase{"partial_interleaved", Rope::Style::kInterleaved, 48, 20, true,
                                                     false, 1.0f}),
                         [](const auto& p) { return std::string(p.param.name); });

// Positions 0 ... 36 in shuffled blocks; everything beyond a row's position is NaN or larger than life.
TEST(PagedAttention, MatchesContiguousAttention) {
  Fixture f;
  std::mt19937 gen(11);
  const int64_t heads = 6, kv_heads = 2, d = 32, length = 37, rows = 9;
  Cache cache(5, kv_heads, d);
  const std::vector<int32_t> blocks = {4, 0, 2};
  auto k = random_floats(gen, length * kv_heads * d), v = random_floats(gen, length * kv_heads * d);
  auto q = random_floats(gen, rows * heads * d), gate = random_floats(gen, rows * heads * d);
  for (int64_t t = 0; t < length; ++t)
    for (int64_t h = 0; h < kv_heads; ++h)
      for (int64_t c = 0; c < d; ++c) {
        const auto at = static_cast<size_t>((t * kv_heads + h) * d + c);
        cache.key(blocks.data(), t, h, c) = k[at];
        cache.value(blocks.data(), t, h, c) = v[at];
      }
  // Rows 0 and 8 are padding. Rows 1-4 and 5-7 belong to two "sequences" over the same blocks.
  const Segment segments[] = {{.row = 1, .count = 4, .position = 0}, {.row = 5, .count = 3, .position = 34}};
  const std::vector<int32_t> tables = {4, 0, 2, 4, 0, 2};
  std::vector<float> out(static_cast<size_t>(rows * heads * d), kNan);
  PagedAttentionArgs a;
  a.q = make_tensor(q.data(), {rows, heads, d});
  a.gate = make_tensor(gate.data(), {rows, heads, d});
  a.kv = cache.layer;
  a.segments = {segments, 2, 0, tables.data(), 3};
  a.scale = 0.3f;
  a.out = make_tensor(out.data(), {rows, heads * d});
  paged_attention(f.context, a);

  for (int64_t r = 0; r < rows; ++r) {
    if (r == 0 || r == 8) {
      EXPECT_TRUE(std::isnan(out[static_cast<size_t>(r * heads * d)]));
      continue;
    }
    const int64_t position = r < 5 ? r - 1 : r + 29;
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<double> sum(static_cast<size_t>(d));
      double total = 0;
      for (int64_t t = 0; t <= position; ++t) {
        double s = 0;
        for (int64_t c = 0; c < d; ++c)
          s += q[static_cast<size_t>((r * heads + h) * d + c)] * k[static_cast<size_t>((t * kv_heads + h / 3) * d + c)];
        const double e = std::exp(s * 0.3);
        total += e;
        for (int64_t c = 0; c < d; ++c)
          sum[static_cast<size_t>(c)] += e * v[static_cast<size_t>((t * kv_heads + h / 3) * d + c)];
      }
      for (int64_t c = 0; c < d; ++c) {
        const auto at = static_cast<size_t>((r * heads + h) * d + c);
        const double g = 1.0 / (1.0 + std::exp(-double{gate[at]}));
        EXPECT_NEAR(out[at], sum[static_cast<size_t>(c)] / total * g, 1e-5) << "row " << r << " head " << h;
      }
    }
  }
}

TEST(PagedAttention, AnEmptyBatchDoesNothing) {
  Fixture f;
  Cache cache(1, 2, 32);
  float unused = 0;
  PagedAttentionArgs a;
  a.q = make_tensor(&unused, {0, 4, 32});
  a.out = make_tensor(&unused, {0, 128});
  a.kv = cache.layer;
  paged_attention(f.context, a);
  EXPECT_EQ(unused, 0.0f);
}

}  // namespace
}  // namespace quire
