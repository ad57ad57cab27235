// Prompts through the chunked delta rule on the GPU: against the recurrence in float64, and bit for bit
// alone, in batches and in pieces.
#include "cuda/gdn_support.h"
#include "ops/gated_delta/cuda/chunked.h"

namespace quire::cuda_test {
namespace {

struct Piece {
  int32_t count, position;
};

struct Case {
  const char* name;
  cuda::DeltaShape shape = {2, 4, false};
  std::vector<Piece> pieces;
  std::function<float(std::mt19937&)> g = [](std::mt19937& r) {
    return -0.2f * std::uniform_real_distribution<float>()(r);
  };
  std::function<float(std::mt19937&)> beta = [](std::mt19937& r) {
    return 1.0f / (1.0f + std::exp(-2.0f * std::normal_distribution<float>()(r)));
  };
  float key_spread = 1.0f;  // distance of keys from a common direction
};

struct Inputs {
  std::vector<bf16> q, k, v;
  std::vector<float> g, beta;
  std::vector<Segment> segments;  // the first one decodes: nobody's business here
  size_t rows = 0;
};

// Rows between segments are NaN.
Inputs make_inputs(const Case& c, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  Inputs in;
  in.segments.push_back({0, 1, 9, 0, 9, 0});
  int32_t row = 2;
  std::vector<int32_t> slots(c.pieces.size());
  std::iota(slots.begin(), slots.end(), 1);
  std::shuffle(slots.begin(), slots.end(), rng);
  for (size_t i = 0; i < c.pieces.size(); ++i) {
    const Piece& p = c.pieces[i];
    in.segments.push_back({row, p.count, p.position, slots[i], p.position, 0});
    row += p.count + 1;
  }
  in.rows = static_cast<size_t>(row);
  const auto Hk = static_cast<size_t>(c.shape.Hk), Hv = static_cast<size_t>(c.shape.Hv);
  const bf16 nan = __float2bfloat16(NAN);
  in.q.assign(in.rows * Hk * 128, nan);
  in.k = in.q;
  in.v.assign(in.rows * Hv * 128, nan);
  in.g.assign(in.rows * Hv, NAN);
  in.beta = in.g;
  std::vector<float> common(128), x(128);
  for (float& f : common) f = normal(rng);
  const auto unit = [&](float spread, bf16* to) {
    double sum = 1e-12;
    for (size_t d = 0; d < 128; ++d) {
      x[d] = (1.0f - spread) * common[d] + spread * normal(rng);
      sum += static_cast<double>(x[d]) * static_cast<double>(x[d]);
    }
    for (size_t d = 0; d < 128; ++d) to[d] = __float2bfloat16(x[d] / static_cast<float>(std::sqrt(sum)));
  };
  for (size_t s = 1; s < in.segments.size(); ++s)
    for (int32_t t = in.segments[s].row; t < in.segments[s].row + in.segments[s].count; ++t) {
      const auto r = static_cast<size_t>(t);
      for (size_t h = 0; h < Hk; ++h) {
        unit(1.0f, &in.q[(r * Hk + h) * 128]);
        unit(c.key_spread, &in.k[(r * Hk + h) * 128]);
      }
      for (size_t i = 0; i < Hv * 128; ++i) in.v[r * Hv * 128 + i] = __float2bfloat16(normal(rng));
      for (size_t h = 0; h < Hv; ++h) in.g[r * Hv + h] = c.g(rng), in.beta[r * Hv + h] = c.beta(rng);
    }
  return in;
}

class Prompts {
 public:
  Prompts(const Case& c, const Inputs& in) : c_(c), in_(in), q_(in.q), k_(in.k), v_(in.v), g_(in.g), beta_(in.beta) {}

  // Runs some segments over the given slots; out of all rows.
  std::vector<bf16> operator()(const std::vector<Segment>& segments, GdnSlots& slots, int slab) const {
    int32_t rows = 0;
    for (size_t i = 1; i < segments.size(); ++i) rows += segments[i].count;
    const DeviceBuffer<Segment> d_segments(segments);
    const DeviceBuffer<bf16> out(in_.v.size());
    const auto prompts = static_cast<int64_t>(segments.size()) - 1;
    const DeviceBuffer<unsigned char> workspace(
        static_cast<size_t>(cuda::gdn_chunked_workspace_bytes(c_.shape, rows, prompts)));
    cuda::GdnChunkedParams p;
    p.shape = c_.shape;
    p.slots = slots.views();
    p.segments = {d_segments.data(), static_cast<int32_t>(segments.size()), 1};
    p.prompt_rows = rows;
    p.q = q_.data(), p.k = k_.data(), p.v = v_.data(), p.g = g_.data(), p.beta = beta_.data();
    p.out = out.data();
    p.slab = slab;
    p.workspace = workspace.data();
    const Status status = cuda::launch_gdn_chunked(nullptr, p);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    must(cudaDeviceSynchronize(), "gdn_chunked");
    EXPECT_TRUE(out.guards_intact() && workspace.guards_intact() && slots.guards_intact());
    return out.download();
  }

 private:
  const Case& c_;
  const Inputs& in_;
  const DeviceBuffer<bf16> q_, k_, v_;
  const DeviceBuffer<float> g_, beta_;
};

std::vector<float> entering_state(const GdnSlots& slots, const Segment& s) {
  return GdnLayer::uniform(slots.state_count(), -0.2f, 0.2f, 77u + static_cast<uint32_t>(s.row));
}
void fill_slots(GdnSlots& slots, const std::vector<Segment>& segments) {
  for (size_t i = 1; i < segments.size(); ++i) {
    if (segments[i].position == 0) continue;
    std::vector<unsigned char> slot = slots.bytes(segments[i].state_slot);
    const std::vector<float> state = entering_state(slots, segments[i]);
    std::memcpy(slot.data(), state.data(), state.size() * 4);
    slots.set(segments[i].state_slot, slot);
  }
}

std::vector<Case> cases() {
  const std::vector<Piece> mixed = {{130, 0}, {70, 192}, {0, 64}, {1, 0}, {64, 64}, {63, 0}};
  std::vector<Case> all;
  Case fresh{.name = "Fresh", .pieces = {}}, later{.name = "Later", .pieces = {}};
  for (const int n : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    fresh.pieces.push_back({n, 0});
    later.pieces.push_back({n, 64});
  }
  all.push_back(fresh);
  all.push_back(later);
  all.push_back({.name = "GroupedHeads", .shape = {2, 4, true}, .pieces = mixed});
  all.push_back({.name = "OneHeadPerKeyHead", .shape = {2, 2, false}, .pieces = mixed});
  all.push_back({.name = "ThreeHeadsPerKeyHead", .shape = {1, 3, false}, .pieces = mixed});
  all.push_back({.name = "AnyDecay", .pieces = mixed, .g = [](std::mt19937& r) {
                   constexpr float kDecays[] = {0.0f, -1e-4f, -1e-2f, -0.5f, -5.0f, -20.0f, -50.0f, -1e4f};
                   return kDecays[r() % 8];
                 }});
  all.push_back({.name = "NoDecay", .pieces = mixed, .g = [](std::mt19937&) { return 0.0f; }});
  all.push_back({.name = "StrongDecay", .pieces = mixed, .g = [](std::mt19937&) { return -20.0f; }});
  all.push_back({.name = "BetaZero", .pieces = mixed, .beta = [](std::mt19937&) { return 0.0f; }});
  all.push_back({.name = "BetaOne", .pieces = mixed, .beta = [](std::mt19937&) { return 1.0f; }});
  all.push_back({.name = "NearlyParallelKeys",
                 .pieces = mixed,
                 .g = [](std::mt19937&) { return -5e-4f; },
                 .beta = [](std::mt19937&) { return 0.999f; },
                 .key_spread = 0.02f});
  return all;
}

class GdnChunked : public testing::TestWithParam<Case> {};

// Factors of every product are rounded to bf16, whose typical error is a quarter of the worst.
TEST_P(GdnChunked, MatchesFloat64) {
  const Case& c = GetParam();
  const GdnLayer layer(c.shape);
  const Inputs in = make_inputs(c, 3);
  GdnSlots slots(c.shape, static_cast<int>(c.pieces.size()) + 2, 16, 8);
  fill_slots(slots, in.segments);
  const Prompts run(c, in);
  const std::vector<bf16> out = run(in.segments, slots, 64);
  const double unit = 0.25 * kEpsBf16;
  const auto Hk = static_cast<size_t>(c.shape.Hk), Hv = static_cast<size_t>(c.shape.Hv);
  Worst outputs, states;
  size_t written = 0;
  for (size_t i = 1; i < in.segments.size(); ++i) {
    const Segment& s = in.segments[i];
    GdnOracle oracle(layer);
    if (s.position > 0) {
      const std::vector<float> state = entering_state(slots, s);
      std::copy(state.begin(), state.end(), oracle.S.begin());
    }
    for (int32_t t = s.row; t < s.row + s.count; ++t) {
      const auto r = static_cast<size_t>(t);
      const auto values = [&](const auto& from, size_t width) {
        std::vector<double> x(width);
        for (size_t d = 0; d < width; ++d) x[d] = static_cast<double>(static_cast<float>(from[r * width + d]));
        return x;
      };
      oracle.step(values(in.q, Hk * 128), values(in.k, Hk * 128), values(in.v, Hv * 128), values(in.g, Hv),
                  values(in.beta, Hv));
      for (size_t d = 0; d < Hv * 128; ++d, ++written)
        outputs.add(static_cast<double>(to_f(out[r * Hv * 128 + d])), oracle.o[d],
                    kEpsBf16 * std::abs(oracle.o[d]) + unit * oracle.o_error[d]);
    }
    if (s.count == 0) continue;
    const std::vector<float> state = slots.state(s.state_slot);
    for (size_t e = 0; e < state.size(); ++e)
      states.add(static_cast<double>(state[e]), oracle.S[e],
                 kEpsF32 * std::abs(oracle.S[e]) + unit * oracle.state_error(e / 128));
  }
  size_t finite = 0;
  for (const bf16 x : out) finite += !std::isnan(to_f(x));
  std::printf("  %-26s outputs %.3f, states %.3f of their bounds\n", c.name, outputs.excess, states.excess);
  EXPECT_EQ(finite, written) << c.name << ": rows of nobody stay untouched";
  EXPECT_LE(outputs.excess, 1.0) << c.name;
  EXPECT_LE(states.excess, 1.0) << c.name;
  for (const int slot : {0, static_cast<int>(c.pieces.size()) + 1})
    for (const unsigned char byte : slots.bytes(slot)) ASSERT_EQ(byte, 0xff) << c.name << ", slot " << slot;
}

TEST_P(GdnChunked, CutsChangeNoBits) {
  const Case& c = GetParam();
  const Inputs in = make_inputs(c, 4);
  const int count = static_cast<int>(c.pieces.size()) + 2;
  GdnSlots slots(c.shape, count, 16, 8), narrow(c.shape, count, 16, 8), pieces(c.shape, count, 16, 8);
  for (GdnSlots* s : {&slots, &narrow, &pieces}) fill_slots(*s, in.segments);
  const Prompts run(c, in);
  const std::vector<bf16> want = run(in.segments, slots, 64);
  EXPECT_EQ(0, std::memcmp(want.data(), run(in.segments, narrow, 32).data(), want.size() * 2)) << c.name << ", slab 32";
  // One segment after the other, 64 or 128 tokens at a time.
  const size_t width = static_cast<size_t>(c.shape.Hv) * 128;
  for (size_t i = 1; i < in.segments.size(); ++i) {
    const Segment& s = in.segments[i];
    for (int32_t t = 0, step = 64; t < s.count; t += step, step = 192 - step) {
      const int32_t n = std::min(step, s.count - t);
      const std::vector<bf16> got =
          run({in.segments[0], {s.row + t, n, s.position + t, s.state_slot, s.position + t, 0}}, pieces, 64);
      EXPECT_EQ(0, std::memcmp(want.data() + static_cast<size_t>(s.row + t) * width,
                               got.data() + static_cast<size_t>(s.row + t) * width, static_cast<size_t>(n) * width * 2))
          << c.name << ", segment " << i << " from " << t;
    }
  }
  for (const Segment& s : in.segments) {
    EXPECT_EQ(slots.bytes(s.state_slot), narrow.bytes(s.state_slot)) << c.name;
    EXPECT_EQ(slots.bytes(s.state_slot), pieces.bytes(s.state_slot)) << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GdnChunked, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quire::cuda_test
