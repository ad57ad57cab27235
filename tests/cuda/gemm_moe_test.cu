// moe on packed weights: choices and results against float64, and the same bits for a token whoever else is routed.
#include <cuda_runtime.h>

#include <array>
#include <numeric>
#include <optional>

#include "cuda/gemm_support.h"
#include "ops/moe/moe.h"

namespace quire::cuda_test {
namespace {

using gemm::Path;

enum class Shared { kNone, kStacked, kApart };

struct MoeShape {
  DType type;
  int32_t experts, top_k, width, inner;
  Shared shared;
  DType down_type = type;
};

// The experts' matrices and, last, the shared expert's.
HostMatrix joined(const HostMatrix& a, const HostMatrix& b) {
  HostMatrix m = a;
  m.experts += b.experts;
  m.bytes.insert(m.bytes.end(), b.bytes.begin(), b.bytes.end());
  m.values.insert(m.values.end(), b.values.begin(), b.values.end());
  return m;
}

struct Moe {
  MoeShape shape;
  HostMatrix router, gate, up, down, shared_gate, shared_up, shared_down;
  std::vector<float> shared_router, scales;
  std::optional<DeviceWeight> d_router, d_gate_up, d_down, d_shared_gate_up, d_shared_down;
  std::optional<DeviceBuffer<float>> d_scales, d_shared_router;

  Moe(std::mt19937_64& rng, const MoeShape& s, float router_scale = 0.0f)
      : shape(s),
        router(rng, DType::kF32, s.experts, s.width, 1, router_scale),
        gate(rng, s.type, s.inner, s.width, s.experts),
        up(rng, s.type, s.inner, s.width, s.experts),
        down(rng, s.down_type, s.width, s.inner, s.experts),
        shared_gate(rng, s.type, s.inner, s.width),
        shared_up(rng, s.type, s.inner, s.width),
        shared_down(rng, s.down_type, s.width, s.inner),
        shared_router(random_floats(rng, static_cast<size_t>(s.width), 0.1f)) {
    // Scales of gate, up, down for every expert and the shared one.
    std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
    for (int i = 0; i < 3 * (s.experts + 1); ++i) scales.push_back(uniform(rng));
    place();
  }
  void place() {
    d_router.emplace(router);
    const bool stacked = shape.shared == Shared::kStacked;
    const HostMatrix g = stacked ? joined(gate, shared_gate) : gate, u = stacked ? joined(up, shared_up) : up;
    d_gate_up.emplace(g, &u);
    d_down.emplace(stacked ? joined(down, shared_down) : down);
    if (shape.shared == Shared::kApart) {
      d_shared_gate_up.emplace(shared_gate, &shared_up);
      d_shared_down.emplace(shared_down);
    }
    d_scales.emplace(scales);
    d_shared_router.emplace(shared_router);
  }
  float scale(int which, int32_t expert) const {
    return scales[static_cast<size_t>(which * (shape.experts + 1) + expert)];
  }

  // Where it was placed: apart, or behind the experts.
  Weight shared_weight(const HostMatrix& m, const std::optional<DeviceWeight>& apart, const DeviceWeight& experts,
                       const float* scale) const {
    Weight w = weight_of(m, apart ? *apart : experts, scale + shape.experts);
    if (!apart) w.data += experts.weight.expert_bytes() * shape.experts;
    return w;
  }
  // The entry of moe's table.
  static std::string entry_of(Path path) {
    return path == Path::kStream ? "cuda_stream" : path == Path::kTile ? "cuda_tiles" : "";
  }

  struct Result {
    std::vector<float> x;
    std::vector<int32_t> chosen;
  };
  Result run(const std::vector<bf16>& h, const std::vector<float>& x, int32_t rows, Path path, bool add = true) const {
    const DeviceBuffer<bf16> dh(h);
    DeviceBuffer<float> dx(x);
    DeviceBuffer<int32_t> chosen(static_cast<size_t>(rows) * shape.top_k);
    const float* s = d_scales->data();  // of gate, up and down: each expert's, then the shared one's
    const std::array<const float*, 3> scale = {s, s + shape.experts + 1, s + 2 * (shape.experts + 1)};
    MoeArgs args{.h = make_tensor(const_cast<bf16*>(dh.data()), {rows, shape.width}),
                 .router = weight_of(router, *d_router),
                 .gate = weight_of(gate, *d_gate_up, scale[0]),
                 .up = weight_of(up, *d_gate_up, scale[1]),
                 .down = weight_of(down, *d_down, scale[2]),
                 .top_k = shape.top_k,
                 .x = make_tensor(dx.data(), {rows, shape.width}),
                 .add_to_x = add,
                 .chosen = make_tensor(chosen.data(), {rows, shape.top_k})};
    if (shape.shared != Shared::kNone) {
      args.shared_gate = shared_weight(shared_gate, d_shared_gate_up, *d_gate_up, scale[0]);
      args.shared_up = shared_weight(shared_up, d_shared_gate_up, *d_gate_up, scale[1]);
      args.shared_down = shared_weight(shared_down, d_shared_down, *d_down, scale[2]);
      args.shared_router = make_tensor(const_cast<float*>(d_shared_router->data()), {shape.width});
    }
    run_operator("moe", entry_of(path), [&](const OpContext& ctx) { moe(ctx, args); });
    EXPECT_TRUE(dx.guards_intact() && chosen.guards_intact());
    return {dx.download(), chosen.download()};
  }

  // One expert's result for a token, rounded as kernels round.
  void add_expert(const HostMatrix& g, const HostMatrix& u, const HostMatrix& d, int32_t matrix, int32_t scale_at,
                  const bf16* h, double weight, std::vector<double>& sum) const {
    std::vector<bf16> mid(static_cast<size_t>(shape.inner));
    for (int32_t f = 0; f < shape.inner; ++f) {
      const double a = scale(0, scale_at) * exact_dot(g.row(matrix, f), h, shape.width).value;
      const double b = scale(1, scale_at) * exact_dot(u.row(matrix, f), h, shape.width).value;
      mid[static_cast<size_t>(f)] = to_bf16(static_cast<float>(a / (1 + std::exp(-a)) * b));
    }
    for (int32_t n = 0; n < shape.width; ++n)
      sum[static_cast<size_t>(n)] +=
          weight * scale(2, scale_at) * exact_dot(d.row(matrix, n), mid.data(), shape.inner).value;
  }
  // What is added to the residual stream of a token; which experts.
  std::vector<double> expected(const bf16* h, std::vector<int32_t>* chosen) const {
    std::vector<double> logits(static_cast<size_t>(shape.experts)), sum(static_cast<size_t>(shape.width));
    for (int32_t e = 0; e < shape.experts; ++e)
      logits[static_cast<size_t>(e)] = exact_dot(router.row(0, e), h, shape.width).value;
    chosen->resize(static_cast<size_t>(shape.experts));
    std::iota(chosen->begin(), chosen->end(), 0);
    std::stable_sort(chosen->begin(), chosen->end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    chosen->resize(static_cast<size_t>(shape.top_k));
    double total = 0;
    for (const int32_t e : *chosen) total += std::exp(logits[e] - logits[chosen->front()]);
    for (const int32_t e : *chosen)
      add_expert(gate, up, down, e, e, h, std::exp(logits[e] - logits[chosen->front()]) / total, sum);
    if (shape.shared != Shared::kNone) {
      double dot = 0;
      for (int32_t c = 0; c < shape.width; ++c)
        dot += static_cast<double>(shared_router[static_cast<size_t>(c)]) * static_cast<double>(to_float(h[c]));
      add_expert(shared_gate, shared_up, shared_down, 0, shape.experts, h, 1 / (1 + std::exp(-dot)), sum);
    }
    return sum;
  }
};

constexpr MoeShape kShapes[] = {
    {DType::kNVFP4, 16, 4, 256, 64, Shared::kStacked}, {DType::kNVFP4, 40, 8, 512, 192, Shared::kNone},
    {DType::kBF16, 8, 2, 256, 72, Shared::kApart},     {DType::kQ8_0, 24, 3, 256, 96, Shared::kStacked},
    {DType::kMXFP4, 300, 6, 128, 32, Shared::kApart},  {DType::kFP8, 12, 3, 384, 128, Shared::kStacked},
};
// For the kernel of few rows: each of its formats, several row tiles a block, widths that are no whole tiles, many
// experts, K slices.
constexpr MoeShape kFewShapes[] = {
    {DType::kNVFP4, 64, 8, 4352, 512, Shared::kStacked},
    {DType::kNVFP4, 512, 10, 256, 64, Shared::kStacked},
    {DType::kMXFP4, 300, 6, 128, 32, Shared::kNone},
    {DType::kBF16, 8, 8, 264, 72, Shared::kStacked},
    {DType::kBF16, 5, 1, 72, 1032, Shared::kNone},
    {DType::kQ8_0, 24, 3, 608, 96, Shared::kNone},
    {DType::kQ4_K, 12, 2, 512, 256, Shared::kStacked, DType::kQ6_K},
    {DType::kQ4_K, 12, 4, 256, 512, Shared::kNone},
    {DType::kQ6_K, 12, 2, 256, 256, Shared::kStacked},
    {DType::kFP8, 24, 3, 640, 128, Shared::kStacked},
    {DType::kFP8, 12, 8, 256, 384, Shared::kNone},
};

std::string name(const MoeShape& s) {
  return fmt::format("{} E={} k={} D={} Fe={} shared={}", dtype_name(s.type), s.experts, s.top_k, s.width, s.inner,
                     static_cast<int>(s.shared));
}

TEST(GemmMoe, AgainstFloat64) {
  std::mt19937_64 rng(21);
  for (const MoeShape& s : kShapes) {
    const Moe moe(rng, s, 0.2f);
    for (const int32_t rows : {1, 7, 33, 120}) {
      const auto h = random_bf16(rng, static_cast<size_t>(rows) * s.width);
      const std::vector<float> x(static_cast<size_t>(rows) * s.width, 0.0f);
      for (const Path path : {Path::kStream, Path::kTile}) {
        const auto got = moe.run(h, x, rows, path);
        double error = 0, norm = 0;
        for (int32_t t = 0; t<rows; t += rows> 10 ? 5 : 1) {
          std::vector<int32_t> chosen;
          const auto want = moe.expected(h.data() + static_cast<size_t>(t) * s.width, &chosen);
          const std::vector<int32_t> g(got.chosen.begin() + t * s.top_k, got.chosen.begin() + (t + 1) * s.top_k);
          EXPECT_EQ(g, chosen) << name(s) << " token " << t;
          for (int32_t n = 0; n < s.width; ++n) {
            const double d = static_cast<double>(got.x[static_cast<size_t>(t) * s.width + n]) - want[n];
            error += d * d;
            norm += want[n] * want[n];
          }
        }
        EXPECT_LE(std::sqrt(error / norm), 4e-3) << name(s) << ", " << rows << " rows, path " << static_cast<int>(path);
      }
    }
  }
}

// A partial result, for a sum over devices.
TEST(GemmMoe, WhatIsOverwrittenIsWhatWouldBeAddedToZero) {
  std::mt19937_64 rng(26);
  constexpr int32_t kRows = 9;
  const Moe moe(rng, kShapes[0], 0.2f);
  const auto h = random_bf16(rng, static_cast<size_t>(kRows) * kShapes[0].width);
  const std::vector<float> zeros(static_cast<size_t>(kRows) * kShapes[0].width, 0.0f);
  const std::vector<float> nan(zeros.size(), NAN);
  const auto want = moe.run(h, zeros, kRows, Path::kAuto);
  const auto got = moe.run(h, nan, kRows, Path::kAuto, false);
  EXPECT_TRUE(same_bits(got.x, want.x));
}

TEST(GemmMoe, ATokensBitsDependOnThatTokenAlone) {
  std::mt19937_64 rng(22);
  for (const MoeShape& s : kShapes) {
    const Moe moe(rng, s, 0.2f);
    constexpr int32_t kMost = 600;
    const auto h = random_bf16(rng, static_cast<size_t>(kMost) * s.width);
    const auto x = random_floats(rng, static_cast<size_t>(kMost) * s.width);
    const auto slice = [&]<class T>(const std::vector<T>& v, int32_t first, int32_t rows, int32_t width) {
      return std::vector<T>(v.begin() + static_cast<int64_t>(first) * width,
                            v.begin() + static_cast<int64_t>(first + rows) * width);
    };
    std::vector<float> alone;
    for (int32_t t = 0; t < kMost; ++t) {
      const auto one = moe.run(slice(h, t, 1, s.width), slice(x, t, 1, s.width), 1, Path::kStream);
      alone.insert(alone.end(), one.x.begin(), one.x.end());
    }
    for (const int32_t rows : {2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100, 128, 600})
      for (const Path path : {Path::kStream, Path::kTile, Path::kAuto}) {
        const int32_t first = kMost - rows;
        const auto got = moe.run(slice(h, first, rows, s.width), slice(x, first, rows, s.width), rows, path);
        EXPECT_TRUE(same_bits(got.x, slice(alone, first, rows, s.width)))
            << name(s) << ", " << rows << " rows, path " << static_cast<int>(path);
      }
  }
}

TEST(GemmMoe, FewRowsInOneKernel) {
  std::mt19937_64 rng(27);
  for (const MoeShape& s : kFewShapes) {
    const Moe moe(rng, s, 0.2f);
    for (const int32_t rows : {1, 2, 3, 5, 8}) {
      const auto h = random_bf16(rng, static_cast<size_t>(rows) * s.width);
      const auto x = random_floats(rng, static_cast<size_t>(rows) * s.width);
      const auto want = moe.run(h, x, rows, Path::kStream), got = moe.run(h, x, rows, Path::kAuto);
      EXPECT_EQ(got.chosen, want.chosen) << name(s) << ", " << rows << " rows";
      EXPECT_TRUE(same_bits(got.x, want.x)) << name(s) << ", " << rows << " rows";
      EXPECT_TRUE(same_bits(moe.run(h, x, rows, Path::kAuto).x, want.x)) << name(s) << " again";
    }
  }
}

// Every token to the same experts; all others get none.
TEST(GemmMoe, OneExpertGetsAllTokens) {
  std::mt19937_64 rng(23);
  const MoeShape s{DType::kNVFP4, 32, 2, 256, 64, Shared::kStacked};
  Moe moe(rng, s, 0.001f);
  for (int32_t c = 0; c < s.width; ++c) {
    moe.router.values[static_cast<size_t>(9) * s.width + c] = 1.0f;
    moe.router.values[static_cast<size_t>(30) * s.width + c] = 0.5f;
  }
  std::memcpy(moe.router.bytes.data(), moe.router.values.data(), moe.router.bytes.size());
  moe.place();
  constexpr int32_t kRows = 700;
  auto h = random_bf16(rng, static_cast<size_t>(kRows) * s.width);
  for (bf16& v : h) v.bits &= 0x7fff;
  const std::vector<float> x(h.size(), 0.0f);
  const auto tile = moe.run(h, x, kRows, Path::kTile), stream = moe.run(h, x, kRows, Path::kStream);
  for (int32_t t = 0; t < kRows; ++t) {
    ASSERT_EQ(tile.chosen[t * 2], 9);
    ASSERT_EQ(tile.chosen[t * 2 + 1], 30);
  }
  EXPECT_TRUE(same_bits(tile.x, stream.x));
  for (const int32_t t : {0, 350, 699}) {
    std::vector<int32_t> chosen;
    const auto want = moe.expected(h.data() + static_cast<size_t>(t) * s.width, &chosen);
    double error = 0, norm = 0;
    for (int32_t n = 0; n < s.width; ++n) {
      const double d = static_cast<double>(tile.x[static_cast<size_t>(t) * s.width + n]) - want[n];
      error += d * d, norm += want[n] * want[n];
    }
    EXPECT_LE(std::sqrt(error / norm), 5e-3) << t;
  }
}

// More choices than a block's threads look through at once.
TEST(GemmMoe, ManyChoicesAreSortedAsFewAre) {
  std::mt19937_64 rng(28);
  const MoeShape s{DType::kNVFP4, 16, 8, 256, 64, Shared::kStacked};
  const Moe moe(rng, s, 0.2f);
  constexpr int32_t kRows = 300, kTimes = 7;
  static_assert(kRows * kTimes * 8 > 2 * 8192);
  const auto repeated = []<class T>(const std::vector<T>& once) {
    std::vector<T> all;
    for (int32_t i = 0; i < kTimes; ++i) all.insert(all.end(), once.begin(), once.end());
    return all;
  };
  const auto h = random_bf16(rng, static_cast<size_t>(kRows) * s.width);
  const auto x = random_floats(rng, static_cast<size_t>(kRows) * s.width);
  const auto once = moe.run(h, x, kRows, Path::kStream);
  for (const Path path : {Path::kStream, Path::kTile}) {
    const auto all = moe.run(repeated(h), repeated(x), kRows * kTimes, path);
    EXPECT_EQ(all.chosen, repeated(once.chosen));
    EXPECT_TRUE(same_bits(all.x, repeated(once.x))) << "path " << static_cast<int>(path);
  }
}

// So many that each block of threads has several tiles of 256 rows: warpgroups are apart. With a shared expert that is
// sorted with the others, and without.
TEST(GemmMoe, WideTilesGiveTheBitsOfStreams) {
  std::mt19937_64 rng(29);
  for (const MoeShape& s : {MoeShape{DType::kNVFP4, 16, 8, 512, 256, Shared::kStacked},
                            MoeShape{DType::kBF16, 16, 8, 264, 520, Shared::kNone},
                            MoeShape{DType::kMXFP4, 12, 6, 512, 512, Shared::kApart}}) {
    const Moe moe(rng, s, 0.2f);
    constexpr int32_t kRows = 3400;
    const auto h = random_bf16(rng, static_cast<size_t>(kRows) * s.width);
    const auto x = random_floats(rng, static_cast<size_t>(kRows) * s.width);
    const auto tiles = moe.run(h, x, kRows, Path::kTile), streams = moe.run(h, x, kRows, Path::kStream);
    EXPECT_EQ(tiles.chosen, streams.chosen) << name(s);
    EXPECT_TRUE(same_bits(tiles.x, streams.x)) << name(s);
  }
}

TEST(GemmMoe, TiesGoToTheLowerExpert) {
  std::mt19937_64 rng(24);
  const MoeShape s{DType::kBF16, 64, 6, 128, 32, Shared::kNone};
  Moe moe(rng, s, 0.2f);
  for (int32_t e = 0; e < s.experts; ++e)
    std::copy_n(moe.router.values.begin() + static_cast<int64_t>(e % 8) * s.width, s.width,
                moe.router.values.begin() + static_cast<int64_t>(e) * s.width);
  std::memcpy(moe.router.bytes.data(), moe.router.values.data(), moe.router.bytes.size());
  moe.place();
  for (const int32_t rows : {1, 50}) {
    const auto h = random_bf16(rng, static_cast<size_t>(rows) * s.width);
    const std::vector<float> x(h.size(), 0.0f);
    const auto got = moe.run(h, x, rows, Path::kAuto);
    for (int32_t t = 0; t < rows; ++t) {
      const int32_t* c = got.chosen.data() + t * s.top_k;
      for (int k = 0; k < s.top_k; ++k) EXPECT_EQ(c[k], c[0] % 8 + 8 * k) << t;
    }
  }
}

}  // namespace
}  // namespace quire::cuda_test
