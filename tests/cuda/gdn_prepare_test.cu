// gdn_prepare on the GPU: against float64, rings, and bit for bit over cuts of a prompt.
#include "cuda/gdn_support.h"
#include "ops/gated_delta/cuda/prepare.h"

namespace quire::cuda_test {
namespace {

constexpr int kRing = 8;

struct Prompt {
  int id, slot, position, count;
};

struct Outputs {
  std::vector<bf16> q, k, v;
  std::vector<float> g, beta;
};

// Runs the prompts as segments of one step, a padding row behind each; decode segments stand before them.
Outputs run(const GdnLayer& layer, GdnSlots& slots, const std::vector<Prompt>& prompts, std::vector<int>* first) {
  const auto C = static_cast<size_t>(layer.shape.channels()), Hv = static_cast<size_t>(layer.shape.Hv);
  const auto Hk = static_cast<size_t>(layer.shape.Hk);
  std::vector<Segment> segments = {{0, 1, 5, 0, 5, 0}};
  int32_t row = 2, rows = 0;
  for (const Prompt& p : prompts) {
    segments.push_back({row, p.count, p.position, p.slot, p.position, 0});
    if (first != nullptr) first->push_back(row);
    row += p.count + 1;
    rows += p.count;
  }
  const auto T = static_cast<size_t>(row);
  std::vector<bf16> qkv(T * C), a(T * Hv);
  std::vector<float> b(T * Hv);
  for (size_t i = 0; i < prompts.size(); ++i)
    for (int t = 0; t < prompts[i].count; ++t) {
      const GdnToken token = make_token(layer, prompts[i].id, prompts[i].position + t, 0);
      const auto r = static_cast<size_t>(segments[i + 1].row + t);
      std::copy(token.qkv.begin(), token.qkv.end(), qkv.begin() + static_cast<int64_t>(r * C));
      for (size_t h = 0; h < Hv; ++h) a[r * Hv + h] = __float2bfloat16(token.a[h]), b[r * Hv + h] = token.b[h];
    }
  const DeviceBuffer<bf16> d_qkv(qkv), d_a(a), q(T * Hk * 128), k(T * Hk * 128), v(T * Hv * 128);
  const DeviceBuffer<float> d_b(b), g(T * Hv), beta(T * Hv);
  const DeviceBuffer<Segment> d_segments(segments);
  cuda::GdnPrepareParams p;
  p.shape = layer.shape;
  p.weights = layer.weights();
  p.slots = slots.views();
  p.segments = {d_segments.data(), static_cast<int32_t>(segments.size()), 1};
  p.prompt_rows = rows;
  p.qkv = d_qkv.data(), p.qkv_stride = static_cast<int64_t>(C);
  p.a = {d_a.data(), static_cast<int64_t>(Hv), true}, p.b = {d_b.data(), static_cast<int64_t>(Hv), false};
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.g = g.data(), p.beta = beta.data();
  const Status status = cuda::launch_gdn_prepare(nullptr, p);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  must(cudaDeviceSynchronize(), "gdn_prepare");
  EXPECT_TRUE(q.guards_intact() && k.guards_intact() && v.guards_intact() && g.guards_intact() &&
              beta.guards_intact() && slots.guards_intact());
  return {q.download(), k.download(), v.download(), g.download(), beta.download()};
}

class GdnPrepare : public testing::TestWithParam<cuda::DeltaShape> {};

const std::vector<int> kCounts = {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200};

TEST_P(GdnPrepare, MatchesFloat64) {
  const GdnLayer layer(GetParam());
  const int n = static_cast<int>(kCounts.size());
  GdnSlots slots(layer.shape, 2 * n + 1, 16, kRing);
  const auto C = static_cast<size_t>(layer.shape.channels());
  std::vector<Prompt> prompts;
  for (int i = 0; i < 2 * n; ++i)
    prompts.push_back({i, (i * 7) % (2 * n) + 1, i < n ? 0 : 64 * (i - n + 1), kCounts[static_cast<size_t>(i % n)]});
  for (const Prompt& p : prompts) {
    std::vector<unsigned char> slot = slots.bytes(p.slot);
    for (int at = std::max(0, p.position - 3); at < p.position; ++at)
      std::memcpy(slot.data() + slots.at_conv() + static_cast<size_t>(at % kRing) * C * 2,
                  make_token(layer, p.id, at, 0).qkv.data(), C * 2);
    slots.set(p.slot, slot);
  }
  std::vector<int> first;
  const Outputs got = run(layer, slots, prompts, &first);
  Worst vectors, gates;
  size_t written = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Prompt& p = prompts[i];
    std::vector<GdnToken> tokens;
    const int before = std::min(3, p.position);
    for (int at = p.position - before; at < p.position + p.count; ++at) {
      tokens.push_back(make_token(layer, p.id, at, 0));
      for (float& f : tokens.back().a) f = to_f(__float2bfloat16(f));
    }
    for (int t = 0; t < p.count; ++t) {
      std::vector<const std::vector<bf16>*> inputs(4, nullptr);
      for (int x = 0; x < 4; ++x)
        if (before + t - 3 + x >= 0)
          inputs[static_cast<size_t>(x)] = &tokens[static_cast<size_t>(before + t - 3 + x)].qkv;
      const GdnPrepared want = prepare_oracle(layer, inputs, tokens[static_cast<size_t>(before + t)]);
      const auto row = static_cast<size_t>(first[i] + t);
      const auto compare = [&](const std::vector<bf16>& out, const std::vector<double>& w) {
        for (size_t d = 0; d < w.size(); ++d)
          vectors.add(static_cast<double>(to_f(out[row * w.size() + d])), w[d],
                      1.01 * kEpsBf16 * std::abs(w[d]) + 1e-6);
        written += w.size();
      };
      compare(got.q, want.q);
      compare(got.k, want.k);
      compare(got.v, want.v);
      for (size_t h = 0; h < want.g.size(); ++h) {
        gates.add(static_cast<double>(got.g[row * want.g.size() + h]), want.g[h],
                  16 * kEpsF32 * std::abs(want.g[h]) + 1e-9);
        gates.add(static_cast<double>(got.beta[row * want.g.size() + h]), want.beta[h], 8 * kEpsF32);
      }
    }
    const std::vector<bf16> ring = slots.conv(p.slot);
    for (int at = std::max(0, p.position + p.count - 3); at < p.position + p.count; ++at)
      EXPECT_EQ(0, std::memcmp(ring.data() + static_cast<size_t>(at % kRing) * C,
                               tokens[static_cast<size_t>(at - p.position + before)].qkv.data(), C * 2))
          << "ring of prompt " << i << " at " << at;
  }
  const auto all = [](const auto& x) {
    size_t nan = 0;
    for (const auto f : x) nan += std::isnan(static_cast<float>(f));
    return x.size() - nan;
  };
  EXPECT_EQ(all(got.q) + all(got.k) + all(got.v), written) << "rows of nobody stay untouched";
  std::printf("  vectors %.3f, gates %.3f of their bounds\n", vectors.excess, gates.excess);
  EXPECT_LE(vectors.excess, 1.0);
  EXPECT_LE(gates.excess, 1.0);
}

TEST_P(GdnPrepare, CutsChangeNoBits) {
  const GdnLayer layer(GetParam());
  GdnSlots whole(layer.shape, 4, 16, kRing), cut(layer.shape, 4, 16, kRing);
  std::vector<int> first;
  const Outputs want = run(layer, whole, {{1, 2, 0, 200}}, &first);
  for (const auto& [position, count] : std::vector<std::pair<int, int>>{{0, 64}, {64, 128}, {192, 8}}) {
    std::vector<int> at;
    const Outputs got = run(layer, cut, {{3, 1, 0, 70}, {1, 3, position, count}}, &at);
    const auto same = [&](const auto& a, const auto& b) {
      const size_t width = a.size() / 203;  // 200 rows, one before, two of padding
      return std::memcmp(a.data() + static_cast<size_t>(first[0] + position) * width,
                         b.data() + static_cast<size_t>(at[1]) * width,
                         static_cast<size_t>(count) * width * sizeof(a[0])) == 0;
    };
    EXPECT_TRUE(same(want.q, got.q) && same(want.k, got.k) && same(want.v, got.v) && same(want.g, got.g) &&
                same(want.beta, got.beta))
        << "tokens from " << position;
  }
  const std::vector<bf16> a = whole.conv(2), b = cut.conv(3);
  for (int p = 197; p < 200; ++p)
    EXPECT_EQ(0, std::memcmp(a.data() + static_cast<size_t>(p % kRing * layer.shape.channels()),
                             b.data() + static_cast<size_t>(p % kRing * layer.shape.channels()),
                             static_cast<size_t>(layer.shape.channels()) * 2));
}

INSTANTIATE_TEST_SUITE_P(Shapes, GdnPrepare,
                         testing::Values(cuda::DeltaShape{2, 4, false}, cuda::DeltaShape{1, 3, true}),
                         [](const auto& info) { return fmt::format("Hk{}Hv{}", info.param.Hk, info.param.Hv); });

}  // namespace
}  // namespace quire::cuda_test
