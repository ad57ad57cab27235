// Generated tokens through the gated delta net on the GPU: against float64, and bit for bit over every way of
// cutting a sequence's tokens into steps.
#include "cuda/gdn_support.h"
#include "ops/gated_delta/cuda/decode.h"

namespace quire::cuda_test {
namespace {

constexpr int kPending = 24, kRing = 8;  // 8 drafts, 5 rows a step

// One sequence as the host sees it.
struct Sequence {
  int id = 0, slot = 0,
      start = 0;  // start: tokens before the first step (S0 and convolution inputs are given)
  int position = 0, anchor = 0;
};

// A row of a step: token `position` of a sequence, as it really is or (variant > 0) as a wrong draft has it.
struct Row {
  int variant = 0;
};

struct StepInput {
  Sequence* sequence = nullptr;
  std::vector<Row> rows;
  int tentative = 0, accepted = 0;  // accepted <= tentative: how many of the last rows hold
};

class Rig {
 public:
  Rig(const GdnLayer& layer, int sequences, bool fused = true)
      : layer_(layer), slots_(layer.shape, sequences + 2, kPending, kRing), fused_(fused) {}

  GdnSlots& slots() { return slots_; }

  // Puts a sequence that begins at `start` > 0 into its slot: a random S0, anchored at start, and the inputs
  // of the convolution before it.
  void begin(Sequence& s) {
    s.position = s.anchor = s.start;
    if (s.start == 0) return;
    std::vector<unsigned char> slot = slots_.bytes(s.slot);
    const std::vector<float> state = initial_state(s);
    std::memcpy(slot.data(), state.data(), state.size() * 4);
    const auto C = static_cast<size_t>(layer_.shape.channels());
    for (int p = std::max(0, s.start - 3); p < s.start; ++p) {
      const GdnToken t = make_token(layer_, s.id, p, 0);
      std::memcpy(slot.data() + slots_.at_conv() + static_cast<size_t>(p % kRing) * C * 2, t.qkv.data(), C * 2);
    }
    slots_.set(s.slot, slot);
  }
  std::vector<float> initial_state(const Sequence& s) const {
    return GdnLayer::uniform(slots_.state_count(), -0.2f, 0.2f, 1000u + static_cast<uint32_t>(s.id));
  }

  // Runs one step; returns y of every row, in order. Checks that padding rows stay as they were. Sequences
  // advance.
  std::vector<std::vector<bf16>> step(std::vector<StepInput>& inputs) {
    const auto C = static_cast<size_t>(layer_.shape.channels()), Y = static_cast<size_t>(layer_.shape.Hv) * kDeltaHead;
    const auto Hv = static_cast<size_t>(layer_.shape.Hv);
    size_t rows = 2;
    for (const StepInput& in : inputs) rows += in.rows.size() + 1;  // a padding row behind each segment
    std::vector<bf16> qkv(rows * C), z(rows * Y);
    std::vector<float> a(rows * Hv), b(rows * Hv);
    std::vector<Segment> segments;
    int32_t row = 1;
    for (const StepInput& in : inputs) {
      const Sequence& s = *in.sequence;
      segments.push_back({row, static_cast<int32_t>(in.rows.size()), s.position, s.slot, s.anchor, in.tentative});
      for (size_t r = 0; r < in.rows.size(); ++r, ++row) {
        const GdnToken t = make_token(layer_, s.id, s.position + static_cast<int>(r), in.rows[r].variant);
        std::copy(t.qkv.begin(), t.qkv.end(), qkv.begin() + row * static_cast<int64_t>(C));
        std::copy(t.z.begin(), t.z.end(), z.begin() + row * static_cast<int64_t>(Y));
        std::copy(t.a.begin(), t.a.end(), a.begin() + row * static_cast<int64_t>(Hv));
        std::copy(t.b.begin(), t.b.end(), b.begin() + row * static_cast<int64_t>(Hv));
      }
      ++row;
      segments.push_back({});  // an empty segment touches nothing
    }
    const DeviceBuffer<bf16> d_qkv(qkv), d_z(z), y(rows * Y);
    const DeviceBuffer<float> d_a(a), d_b(b);
    const DeviceBuffer<Segment> d_segments(segments);
    cuda::GdnDecodeParams p;
    p.shape = layer_.shape;
    p.weights = layer_.weights();
    p.slots = slots_.views();
    p.segments = {d_segments.data(), static_cast<int32_t>(segments.size()), static_cast<int32_t>(segments.size())};
    p.qkv = d_qkv.data(), p.qkv_stride = static_cast<int64_t>(C);
    p.a = {d_a.data(), static_cast<int64_t>(Hv), false}, p.b = {d_b.data(), static_cast<int64_t>(Hv), false};
    p.z = d_z.data(), p.z_stride = static_cast<int64_t>(Y);
    p.norm_weight = fused_ ? layer_.d_norm.data() : nullptr;
    p.y = y.data(), p.y_stride = static_cast<int64_t>(Y);
    const Status status = cuda::launch_gdn_decode(nullptr, p);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    must(cudaDeviceSynchronize(), "gdn_decode");
    EXPECT_TRUE(y.guards_intact() && slots_.guards_intact() && d_segments.guards_intact());
    return collect(inputs, y.download(), rows);
  }

 private:
  std::vector<std::vector<bf16>> collect(std::vector<StepInput>& inputs, const std::vector<bf16>& y,
                                         size_t rows) const {
    const size_t Y = y.size() / rows;
    std::vector<std::vector<bf16>> out;
    std::vector<bool> used(rows, false);
    size_t row = 1;
    for (StepInput& in : inputs) {
      for (size_t r = 0; r < in.rows.size(); ++r, ++row) {
        used[row] = true;
        out.emplace_back(y.begin() + static_cast<int64_t>(row * Y), y.begin() + static_cast<int64_t>((row + 1) * Y));
      }
      ++row;
      Sequence& s = *in.sequence;
      const int count = static_cast<int>(in.rows.size());
      if (count == 0) continue;
      s.anchor = std::max(s.anchor, (s.position + count - in.tentative) / 16 * 16);
      s.position += count - in.tentative + in.accepted;
    }
    bool untouched = true;
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < Y && !used[r]; ++i) {
        uint16_t bits;
        std::memcpy(&bits, &y[r * Y + i], 2);
        untouched = untouched && bits == 0xffff;
      }
    EXPECT_TRUE(untouched) << "padding rows";
    return out;
  }

  const GdnLayer& layer_;
  GdnSlots slots_;
  bool fused_;
};

// y of every token of a sequence, computed one row a step, alone.
using Texts = std::vector<std::vector<std::vector<bf16>>>;  // [sequence][token - start]

std::vector<Sequence> some_sequences(int rig_slots) {
  // Starts: nothing before, every phase around a multiple of 16, prompt ends off the grid, far positions.
  const std::vector<int> starts = {0, 64, 70, 79, 80, 1, 15, 127, 16, 1 << 20};
  std::vector<int> slots(static_cast<size_t>(rig_slots));
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), std::mt19937(5));
  std::vector<Sequence> all;
  for (size_t i = 0; i < starts.size(); ++i)
    all.push_back({.id = static_cast<int>(i), .slot = slots[i], .start = starts[i]});
  return all;
}
constexpr int kSequences = 10;

Texts one_row_a_step(const GdnLayer& layer, int tokens, std::vector<std::vector<float>>& states) {
  Texts texts;
  std::vector<Sequence> all = some_sequences(kSequences + 2);
  for (Sequence& s : all) {
    Rig rig(layer, kSequences);
    rig.begin(s);
    texts.emplace_back();
    for (int i = 0; i < tokens; ++i) {
      std::vector<StepInput> in = {{&s, {Row{}}}};
      texts.back().push_back(rig.step(in)[0]);
    }
    states.push_back(rig.slots().state(s.slot));
  }
  return texts;
}

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 2) == 0;
}

class GdnDecode : public testing::TestWithParam<cuda::DeltaShape> {};

// Values, after every token, for 40 tokens: all numbers of pending tokens, folds, prompt ends off the grid.
TEST_P(GdnDecode, MatchesFloat64) {
  const GdnLayer layer(GetParam());
  for (const bool fused : {true, false}) {
    std::vector<Sequence> all = some_sequences(kSequences + 2);
    Rig rig(layer, kSequences, fused);
    Worst out, keys, state;
    std::vector<GdnOracle> oracles(all.size(), GdnOracle(layer));
    std::vector<std::vector<GdnToken>> tokens(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      rig.begin(all[i]);
      const std::vector<float> s0 = rig.initial_state(all[i]);
      if (all[i].start > 0) std::copy(s0.begin(), s0.end(), oracles[i].S.begin());
      for (int p = std::max(0, all[i].start - 3); p < all[i].start + 40; ++p)
        tokens[i].push_back(make_token(layer, all[i].id, p, 0));
    }
    const double unit = (kDeltaHead / 8.0 + 16.0) * kEpsF32;
    for (int t = 0; t < 40; ++t) {
      std::vector<StepInput> in;
      for (Sequence& s : all) in.push_back({&s, {Row{}}});
      const auto y = rig.step(in);
      for (size_t i = 0; i < all.size(); ++i) {
        const int before = std::min(3, all[i].start);
        std::vector<const std::vector<bf16>*> inputs(4, nullptr);
        for (int x = 0; x < 4; ++x)
          if (const int at = before + t - 3 + x; at >= 0)
            inputs[static_cast<size_t>(x)] = &tokens[i][static_cast<size_t>(at)].qkv;
        const GdnToken& token = tokens[i][static_cast<size_t>(before + t)];
        GdnPrepared p = prepare_oracle(layer, inputs, token);
        // The key counts as the kernel rounded it, if that is a rounding of the right one.
        const std::vector<bf16> pending = rig.slots().keys(all[i].slot);
        const size_t at = static_cast<size_t>((all[i].position - 1) % kPending) * p.k.size();
        for (size_t d = 0; d < p.k.size(); ++d) {
          const auto k = static_cast<double>(to_f(pending[at + d]));
          keys.add(k, p.k[d], 0.501 * 2 * kEpsBf16 * std::abs(p.k[d]) + 1e-6);
          p.k[d] = k;
        }
        GdnOracle& oracle = oracles[i];
        oracle.step(p.q, p.k, p.v, p.g, p.beta);
        for (size_t h = 0; h < static_cast<size_t>(layer.shape.Hv); ++h) {
          double sum = 1e-6 * kDeltaHead, error_sum = 0.0;
          for (size_t d = h * kDeltaHead; d < (h + 1) * kDeltaHead; ++d) {
            sum += oracle.o[d] * oracle.o[d];
            error_sum += oracle.o_error[d] * oracle.o_error[d];
          }
          for (size_t d = h * kDeltaHead; d < (h + 1) * kDeltaHead; ++d) {
            const auto z = static_cast<double>(to_f(token.z[d]));
            const double gate = fused ? static_cast<double>(layer.norm[d % kDeltaHead]) * z / (1.0 + std::exp(-z)) /
                                            std::sqrt(sum / kDeltaHead)
                                      : 1.0;
            const double error = oracle.o_error[d] + (fused ? std::abs(oracle.o[d]) * std::sqrt(error_sum / sum) : 0.0);
            const double want = oracle.o[d] * gate;
            out.add(static_cast<double>(to_f(y[i][d])), want,
                    1.01 * kEpsBf16 * std::abs(want) + unit * std::abs(gate) * error + 1e-30);
          }
        }
        if (all[i].position % 16 != 0) continue;
        const std::vector<float> s = rig.slots().state(all[i].slot);
        for (size_t e = 0; e < s.size(); ++e)
          state.add(static_cast<double>(s[e]), oracle.S[e],
                    kEpsF32 * std::abs(oracle.S[e]) + unit * oracle.state_error(e / kDeltaHead));
      }
    }
    std::printf("  norm %s: outputs %.3f, keys %.3f, state %.3f of their bounds\n", fused ? "fused" : "none",
                out.excess, keys.excess, state.excess);
    EXPECT_LE(out.excess, 1.0);
    EXPECT_LE(keys.excess, 1.0);
    EXPECT_LE(state.excess, 1.0);
    EXPECT_GT(state.excess, 0.0);
  }
}

// Alone or in a batch, one row or several, drafts accepted or not: the same bits.
TEST_P(GdnDecode, CutsChangeNoBits) {
  const GdnLayer layer(GetParam());
  constexpr int kTokens = 48;
  std::vector<std::vector<float>> states;
  const Texts want = one_row_a_step(layer, kTokens, states);
  std::mt19937 rng(11);
  for (int mode = 0; mode < 4; ++mode) {
    // 0: the batch; 1: several rows; 2: drafts, some wrong; 3: all rows but the first are drafts
    std::vector<Sequence> all = some_sequences(kSequences + 2);
    Rig rig(layer, kSequences);
    for (Sequence& s : all) rig.begin(s);
    for (;;) {
      std::vector<StepInput> in;
      for (Sequence& s : all) {
        const int left = s.start + kTokens - s.position;
        if (left <= 0 || (mode >= 1 && rng() % 4 == 0)) {
          if (left > 0) in.push_back({&s, {}});
          continue;
        }
        StepInput x{&s, {Row{}}};
        const int more = mode < 1 ? 0 : static_cast<int>(rng() % 5);
        const int rows = std::min(left, 1 + more);
        x.rows.resize(static_cast<size_t>(rows));
        if (mode >= 2) {
          x.tentative = mode == 3 ? rows - 1 : static_cast<int>(rng() % static_cast<unsigned>(rows));
          x.accepted = x.tentative == 0 ? 0 : static_cast<int>(rng() % static_cast<unsigned>(x.tentative + 1));
          // The last steps leave nothing tentative, so that the states can be compared.
          if (rows == left) x.tentative = x.accepted = 0;
          for (int r = rows - x.tentative + x.accepted; r < rows; ++r) x.rows[static_cast<size_t>(r)].variant = 1;
        }
        in.push_back(x);
      }
      if (in.empty()) break;
      std::shuffle(in.begin(), in.end(), rng);
      std::vector<int> first;
      for (const StepInput& x : in) first.push_back(x.sequence->position - x.sequence->start);
      const auto y = rig.step(in);
      size_t row = 0;
      for (size_t i = 0; i < in.size(); ++i)
        for (size_t r = 0; r < in[i].rows.size(); ++r, ++row)
          if (in[i].rows[r].variant == 0)
            ASSERT_TRUE(
                same_bits(y[row], want[static_cast<size_t>(in[i].sequence->id)][static_cast<size_t>(first[i]) + r]))
                << "mode " << mode << ", sequence " << in[i].sequence->id << ", token "
                << first[i] + static_cast<int>(r);
    }
    for (const Sequence& s : all) {
      const std::vector<float> got = rig.slots().state(s.slot);
      EXPECT_EQ(0, std::memcmp(got.data(), states[static_cast<size_t>(s.id)].data(), got.size() * 4))
          << "mode " << mode << ", state of sequence " << s.id;
    }
    // Slots that no sequence has keep their poison.
    std::vector<bool> owned(static_cast<size_t>(rig.slots().count()), false);
    for (const Sequence& s : all) owned[static_cast<size_t>(s.slot)] = true;
    for (int slot = 0; slot < rig.slots().count(); ++slot)
      if (!owned[static_cast<size_t>(slot)])
        for (const unsigned char byte : rig.slots().bytes(slot)) ASSERT_EQ(byte, 0xff) << "slot " << slot;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GdnDecode,
                         testing::Values(cuda::DeltaShape{2, 4, false}, cuda::DeltaShape{2, 4, true},
                                         cuda::DeltaShape{1, 3, false}),
                         [](const auto& info) {
                           return fmt::format("Hk{}Hv{}{}", info.param.Hk, info.param.Hv,
                                              info.param.grouped ? "Grouped" : "Tiled");
                         });

TEST(GdnDecodeErrors, LayoutsAreChecked) {
  EXPECT_TRUE(cuda::launch_gdn_decode(nullptr, {}).ok()) << "no segments, nothing to do";
  EXPECT_FALSE(cuda::check_delta(cuda::DeltaShape{}).ok()) << "no heads";
  EXPECT_FALSE(cuda::check_delta(cuda::DeltaShape{2, 3, false}).ok()) << "3 value heads on 2 key heads";
  EXPECT_TRUE(cuda::check_delta(cuda::DeltaShape{2, 4, false}).ok());
  EXPECT_FALSE(cuda::check_delta(cuda::DeltaSlots{}).ok()) << "no memory for pending tokens";
}

}  // namespace
}  // namespace quire::cuda_test
