// Cases of the two forms of the delta rule. Every kernel, the reference included, answers to the oracle
// below, which follows the error along with the value.
#include <cmath>
#include <functional>
#include <limits>

#include "ops/conformance/conformance.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire::conformance {
namespace {

struct Piece {
  int32_t count, position;
  bool decode;
};

struct Case {
  std::string name;
  int64_t Hk = 2, Hv = 4, Dk = 64, Dv = 64;
  HeadMap heads = HeadMap::kTiled;
  DType type = DType::kBF16;
  std::vector<Piece> pieces;
  std::function<float(Rng&)> g = [](Rng& r) { return -r.uniform(0.0f, 0.2f); };
  std::function<float(Rng&)> beta = [](Rng& r) { return 1.0f / (1.0f + std::exp(-r.normal(2.0f))); };
  float key_spread = 1.0f;  // distance of keys from a common direction
};

// Inputs of a case. Rows between segments and slots that no segment may read are NaN.
struct Inputs {
  Buffer q, k, v, g, beta, state;
  std::vector<Segment> segments;
  int64_t rows, slots;
};

Inputs make_inputs(const Case& c, Rng& rng) {
  const int n = static_cast<int>(c.pieces.size());
  int64_t rows = 1;
  for (const Piece& p : c.pieces) rows += p.count + 1;
  const int64_t slots = n + 2;
  Inputs in{Buffer(c.type, {rows, c.Hk, c.Dk}),
            Buffer(c.type, {rows, c.Hk, c.Dk}),
            Buffer(c.type, {rows, c.Hv, c.Dv}),
            Buffer(DType::kF32, {rows, c.Hv}),
            Buffer(DType::kF32, {rows, c.Hv}),
            Buffer(DType::kF32, {slots, c.Hv, c.Dv, c.Dk}),
            {},
            rows,
            slots};
  const std::vector<int32_t> slot = rng.permutation(static_cast<int>(slots));
  std::vector<float> common(static_cast<size_t>(c.Dk)), x(common);
  for (float& f : common) f = rng.normal();
  const auto unit_vector = [&](float spread, const Tensor& t, int64_t at) {
    double sum = 1e-12;
    for (size_t d = 0; d < x.size(); ++d) {
      x[d] = (1.0f - spread) * common[d] + spread * rng.normal();
      sum += static_cast<double>(x[d]) * static_cast<double>(x[d]);
    }
    for (size_t d = 0; d < x.size(); ++d)
      store_float(t, at + static_cast<int64_t>(d), x[d] / static_cast<float>(std::sqrt(sum)));
  };
  int32_t row = 1;
  for (int i = 0; i < n; ++i) {
    const Piece& p = c.pieces[static_cast<size_t>(i)];
    Segment s{row, p.count, p.position, slot[static_cast<size_t>(i)], nullptr, p.decode};
    for (int64_t t = row; t < row + p.count; ++t) {
      for (int64_t h = 0; h < c.Hk; ++h) {
        unit_vector(1.0f, in.q.tensor(), (t * c.Hk + h) * c.Dk);
        unit_vector(c.key_spread, in.k.tensor(), (t * c.Hk + h) * c.Dk);
      }
      for (int64_t h = 0; h < c.Hv; ++h) {
        for (int64_t d = 0; d < c.Dv; ++d)
          store_float(in.v.tensor(), (t * c.Hv + h) * c.Dv + d, rng.normal());
        in.g.tensor().as<float>()[t * c.Hv + h] = c.g(rng);
        in.beta.tensor().as<float>()[t * c.Hv + h] = c.beta(rng);
      }
    }
    if (p.position > 0) {
      float* state = in.state.tensor().row<float>(s.state_slot);
      for (int64_t j = 0; j < c.Hv * c.Dv * c.Dk; ++j) state[j] = rng.normal(0.1f);
    }
    in.segments.push_back(s);
    row += p.count + 1;
  }
  return in;
}

// What comes out, in float64, and how sensitive it is to rounding. (I - beta k k^T) never lengthens a
// column's error (|k| = 1, beta in [0, 1]), the decay shortens it; a step adds `unit` times the magnitudes
// that it adds up. Steps round independently, so their errors are added in squares; kSigmas leaves room for
// the unlucky one.
//   |out - want| <= eps_out |want| + unit * out_error;  |state - want| <= unit * state_error
constexpr double kSigmas = 4.0;
struct Expected {
  std::vector<double> out, out_error, state, state_error;  // NaN where nothing is written
};

Expected oracle(const Case& c, const Inputs& in, bool decode) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  Expected e;
  e.out.assign(size(in.rows * c.Hv * c.Dv), kNaN);
  e.out_error = e.out;
  e.state.assign(size(in.slots * c.Hv * c.Dv * c.Dk), kNaN);
  e.state_error = e.state;
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.Dk));
  std::vector<double> S(size(c.Dk)), q(S), k(S);
  for (const Segment& s : in.segments) {
    if (s.decode != decode) continue;
    for (int64_t column = 0; column < c.Hv * c.Dv; ++column) {
      const int64_t hv = column / c.Dv, hk = c.heads == HeadMap::kTiled ? hv % c.Hk : hv / (c.Hv / c.Hk);
      const int64_t at = (s.state_slot * c.Hv * c.Dv + column) * c.Dk;
      double norm = 0.0, error2 = 0.0;
      for (int64_t d = 0; d < c.Dk; ++d) {
        S[size(d)] = s.position > 0 ? in.state.tensor().as<float>()[at + d] : 0.0;
        norm += S[size(d)] * S[size(d)];
      }
      for (int64_t row = s.row; row < s.row + s.count; ++row) {
        const double decay = std::exp(static_cast<double>(in.g.tensor().as<float>()[row * c.Hv + hv]));
        const double beta = static_cast<double>(in.beta.tensor().as<float>()[row * c.Hv + hv]);
        const double v = static_cast<double>(load_float(in.v.tensor(), row * c.Hv * c.Dv + column));
        double predicted = 0.0, out = 0.0, q_norm = 0.0;
        const double before = decay * std::sqrt(norm);
        for (int64_t d = 0; d < c.Dk; ++d) {
          const int64_t i = (row * c.Hk + hk) * c.Dk + d;
          q[size(d)] = static_cast<double>(load_float(in.q.tensor(), i));
          k[size(d)] = static_cast<double>(load_float(in.k.tensor(), i));
          q_norm += q[size(d)] * q[size(d)];
          predicted += decay * S[size(d)] * k[size(d)];
        }
        norm = 0.0;
        for (int64_t d = 0; d < c.Dk; ++d) {
          S[size(d)] = decay * S[size(d)] + beta * (v - predicted) * k[size(d)];
          norm += S[size(d)] * S[size(d)];
          out += S[size(d)] * q[size(d)];
        }
        const double local = beta * std::abs(v) + before + std::sqrt(norm);
        error2 = decay * decay * error2 + local * local;
        const int64_t o = row * c.Hv * c.Dv + column;
        e.out[size(o)] = out * scale;
        e.out_error[size(o)] = kSigmas * scale * std::sqrt(q_norm) * (std::sqrt(error2) + local) + 1e-30;
      }
      for (int64_t d = 0; d < c.Dk; ++d) {
        e.state[size(at + d)] = S[size(d)];
        e.state_error[size(at + d)] = kSigmas * std::sqrt(error2) + 1e-30;
      }
    }
  }
  return e;
}

// The part of `got` that the oracle speaks about, against it; what it does not speak about must be untouched.
void expect_values(Suite& s, std::string_view kernel, const std::string& name, const Buffer& got,
                   const Buffer& untouched, const std::vector<double>& want, const std::vector<double>& error,
                   double relative, double unit) {
  const std::vector<float> all = got.values(), old = untouched.values();
  std::vector<float> part;
  std::vector<double> part_want, part_bound;
  bool intact = true;
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(want[i])) {
      intact = intact && (all[i] == old[i] || (std::isnan(all[i]) && std::isnan(old[i])));
      continue;
    }
    part.push_back(all[i]);
    part_want.push_back(want[i]);
    part_bound.push_back(relative * std::abs(want[i]) + unit * error[i]);
  }
  s.expect_close(kernel, name, worst_excess(part, part_want, part_bound));
  s.expect(kernel, name, intact, "rows and slots of others are left alone");
}

class DeltaRule {
 public:
  DeltaRule(Suite& s, const Case& c, bool decode)
      : s_(s), c_(c), decode_(decode), rng_(s.rng_for_case(c.name)), in_(make_inputs(c, rng_)) {}

  void check() {
    const auto table = decode_ ? gdn_recurrent_kernels() : gdn_chunked_kernels();
    const Expected want = oracle(c_, in_, decode_);
    for (const auto& k : s_.kernels(table)) {
      Buffer out(c_.type, {in_.rows, c_.Hv, c_.Dv}), state = in_.state;
      const Buffer untouched = out;
      if (!s_.wants(k.name, c_.name) || !k.fits(s_.cpu(), args(in_.segments, {}, state, out))) continue;
      kernel_ = &k;
      run(in_.segments, {}, state, out);
      // float32: a dot product of Dk terms in at least 8 accumulators, three such per step; tiles of a
      // chunked form add up to 64 rows more. AMX rounds the factors of every product to bf16, whose
      // typical error is a quarter of the worst.
      const double f32 = (static_cast<double>(c_.Dk) / 8.0 + 16.0) * kEpsF32;
      const double unit = k.name == "amx" ? 0.25 * kEpsBf16 : f32;
      expect_values(s_, k.name, c_.name, out, untouched, want.out, want.out_error,
                    c_.type == DType::kBF16 ? kEpsBf16 : kEpsF32, unit);
      expect_values(s_, k.name, c_.name, state, in_.state, want.state, want.state_error, kEpsF32, unit);
      s_.expect_guards(k.name, c_.name, {&out, &state, &in_.q, &in_.k, &in_.v, &in_.g, &in_.beta});

      Buffer out1(c_.type, {in_.rows, c_.Hv, c_.Dv}), state1 = in_.state;
      kernel_->launch(s_.context(Device::kCpu, 1), args(in_.segments, {}, state1, out1));
      s_.expect_same_bits(k.name, c_.name + ", one thread", out1, out);
      s_.expect_same_bits(k.name, c_.name + ", one thread, state", state1, state);

      alone(out, state);
      in_pieces(out, state);
      if (decode_) every_state(out);
    }
  }

 private:
  GatedDeltaArgs args(const std::vector<Segment>& segments, const std::vector<int32_t>& token_slots,
                      const Buffer& state, const Buffer& out) const {
    return {in_.q, in_.k, in_.v, in_.g, in_.beta, c_.heads, state, segments, token_slots, out};
  }
  void run(const std::vector<Segment>& segments, const std::vector<int32_t>& token_slots, Buffer& state,
           Buffer& out) {
    kernel_->launch(s_.context(Device::kCpu), args(segments, token_slots, state, out));
  }

  // Each segment by itself, in another slot.
  void alone(const Buffer& out, const Buffer& state) {
    for (const Segment& seg : in_.segments) {
      if (seg.decode != decode_) continue;
      Segment other = seg;
      other.state_slot = static_cast<int32_t>((seg.state_slot + 1) % in_.slots);
      Buffer out1(c_.type, {in_.rows, c_.Hv, c_.Dv}), state1 = in_.state;
      copy_state(in_.state, seg.state_slot, state1, other.state_slot);
      run({other}, {}, state1, out1);
      const std::string name = fmt::format("{}, segment at row {} alone", c_.name, seg.row);
      s_.expect_same_bits(kernel_->name, name, out1.tensor().rows(seg.row, seg.count),
                          out.tensor().rows(seg.row, seg.count));
      s_.expect_same_bits(kernel_->name, name + ", state", state1.tensor().rows(other.state_slot, 1),
                          state.tensor().rows(seg.state_slot, 1));
    }
  }

  // Prompts cut on the grid of 64, generated tokens one by one: the state goes from piece to piece.
  void in_pieces(const Buffer& out, const Buffer& state) {
    const int32_t step = decode_ ? 1 : kChunkTokens;
    Buffer out1(c_.type, {in_.rows, c_.Hv, c_.Dv}), state1 = in_.state;
    int32_t longest = 0;
    for (const Segment& seg : in_.segments)
      if (seg.decode == decode_) longest = std::max(longest, seg.count);
    for (int32_t t = 0; t < longest; t += step) {
      std::vector<Segment> pieces;
      for (Segment seg : in_.segments) {
        if (seg.decode != decode_ || t >= seg.count) continue;
        seg.row += t;
        seg.position += t;
        seg.count = std::min(step, seg.count - t);
        pieces.push_back(seg);
      }
      run(pieces, {}, state1, out1);
    }
    s_.expect_same_bits(kernel_->name, c_.name + ", in pieces", out1, out);
    s_.expect_same_bits(kernel_->name, c_.name + ", in pieces, state", state1, state);
  }

  // Verification: a slot per row; each must hold what a run that ends there leaves, and the segment's own
  // slot stays as it was.
  void every_state(const Buffer& out) {
    const Segment* seg = nullptr;
    for (const Segment& x : in_.segments)
      if (x.decode && x.count <= 8 && (seg == nullptr || x.count > seg->count)) seg = &x;
    if (seg == nullptr) return;
    Buffer wide(DType::kF32, {in_.slots + seg->count, c_.Hv, c_.Dv, c_.Dk});
    copy_state(in_.state, seg->state_slot, wide, seg->state_slot);
    const Buffer before = wide;
    std::vector<int32_t> token_slots(static_cast<size_t>(in_.rows), -1);
    for (int32_t t = 0; t < seg->count; ++t)  // the second row's state is not kept
      token_slots[static_cast<size_t>(seg->row + t)] = t == 1 ? -1 : static_cast<int32_t>(in_.slots) + t;
    Buffer out1(c_.type, {in_.rows, c_.Hv, c_.Dv});
    run({*seg}, token_slots, wide, out1);
    const std::string name = c_.name + ", a slot per row";
    s_.expect_same_bits(kernel_->name, name, out1.tensor().rows(seg->row, seg->count),
                        out.tensor().rows(seg->row, seg->count));
    s_.expect_same_bits(kernel_->name, name + ", own slot", wide.tensor().rows(seg->state_slot, 1),
                        before.tensor().rows(seg->state_slot, 1));
    for (int32_t t = 0; t < seg->count; ++t) {
      if (t == 1) continue;
      Segment prefix = *seg;
      prefix.count = t + 1;
      Buffer state = in_.state, ignored(c_.type, {in_.rows, c_.Hv, c_.Dv});
      run({prefix}, {}, state, ignored);
      s_.expect_same_bits(kernel_->name, fmt::format("{}, state after row {}", name, t),
                          wide.tensor().rows(in_.slots + t, 1), state.tensor().rows(seg->state_slot, 1));
    }
  }

  void copy_state(const Buffer& from, int64_t a, const Buffer& to, int64_t b) const {
    const float* src = from.tensor().row<float>(a);
    std::copy(src, src + c_.Hv * c_.Dv * c_.Dk, to.tensor().row<float>(b));
  }

  Suite& s_;
  const Case& c_;
  bool decode_;
  Rng rng_;
  Inputs in_;
  const Kernel<GatedDeltaArgs>* kernel_ = nullptr;
};

// Decays from none to complete, side by side.
float any_decay(Rng& r) {
  constexpr float kDecays[] = {0.0f, -1e-4f, -1e-2f, -0.5f, -5.0f, -20.0f, -50.0f, -1e4f};
  return kDecays[r.integer(0, 7)];
}

std::vector<Case> cases(bool decode) {
  std::vector<Case> list;
  const std::vector<Piece> mixed = {{1, 5, true},     {130, 0, false}, {3, 0, true},
                                    {70, 192, false}, {1, 0, false},   {7, 77, true}};
  const std::vector<int32_t> counts =
      decode ? std::vector<int32_t>{1, 2, 5, 17}
             : std::vector<int32_t>{1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200};
  for (const int32_t n : counts) {
    list.push_back({.name = fmt::format("{} tokens, fresh", n), .pieces = {{n, 0, decode}}});
    list.push_back({.name = fmt::format("{} tokens, later", n), .pieces = {{n, 64, decode}}});
  }
  for (const int64_t Dk : {32, 64, 128}) {
    for (const int64_t r : {1, 2, 4}) {
      for (const HeadMap map : {HeadMap::kTiled, HeadMap::kGrouped})
        list.push_back({.name = fmt::format("mixed Dk={} Hv/Hk={} {}", Dk, r,
                                            map == HeadMap::kTiled ? "tiled" : "grouped"),
                        .Hk = 2,
                        .Hv = 2 * r,
                        .Dk = Dk,
                        .Dv = Dk,
                        .heads = map,
                        .pieces = mixed});
    }
  }
  list.push_back({.name = "Dk=48 Dv=80", .Dk = 48, .Dv = 80, .pieces = mixed});
  list.push_back({.name = "Dk=128 Dv=64", .Dk = 128, .Dv = 64, .pieces = mixed});
  list.push_back({.name = "Dk=64 Dv=128", .Dk = 64, .Dv = 128, .pieces = mixed});
  list.push_back({.name = "Dk=24 Dv=7", .Dk = 24, .Dv = 7, .pieces = mixed});
  list.push_back({.name = "Dk=20 Dv=33", .Dk = 20, .Dv = 33, .pieces = mixed});
  list.push_back({.name = "Dk=256 Dv=256", .Hk = 1, .Hv = 2, .Dk = 256, .Dv = 256, .pieces = mixed});
  list.push_back({.name = "float32", .Dk = 128, .Dv = 128, .type = DType::kF32, .pieces = mixed});
  list.push_back({.name = "any decay", .pieces = mixed, .g = any_decay});
  list.push_back({.name = "any decay, Dk=128", .Dk = 128, .Dv = 128, .pieces = mixed, .g = any_decay});
  list.push_back(
      {.name = "strong decay", .pieces = mixed, .g = [](Rng& r) { return -r.uniform(20.0f, 50.0f); }});
  list.push_back({.name = "no decay", .pieces = mixed, .g = [](Rng&) { return 0.0f; }});
  list.push_back({.name = "beta 0", .pieces = mixed, .beta = [](Rng&) { return 0.0f; }});
  list.push_back({.name = "beta 1", .pieces = mixed, .beta = [](Rng&) { return 1.0f; }});
  list.push_back({.name = "nearly parallel keys",
                  .pieces = mixed,
                  .g = [](Rng& r) { return -r.uniform(0.0f, 1e-3f); },
                  .beta = [](Rng&) { return 0.999f; },
                  .key_spread = 0.02f});
  list.push_back({.name = "nearly parallel keys, Dk=128",
                  .Dk = 128,
                  .Dv = 128,
                  .pieces = mixed,
                  .g = [](Rng& r) { return -r.uniform(0.0f, 1e-3f); },
                  .beta = [](Rng& r) { return r.uniform(0.0f, 1.0f); },
                  .key_spread = 0.02f});
  std::vector<Piece> many(33, {1, 9, true});
  many.push_back({64, 64, false});
  list.push_back({.name = "33 decode rows", .pieces = many});
  return list;
}

void delta_rule_conformance(Suite& s, bool decode) {
  for (const Case& c : cases(decode)) {
    const bool some =
        std::any_of(c.pieces.begin(), c.pieces.end(), [&](const Piece& p) { return p.decode == decode; });
    if (some) DeltaRule(s, c, decode).check();
  }
}

}  // namespace

void gdn_chunked_conformance(Suite& s) {
  delta_rule_conformance(s, false);
}

void gdn_recurrent_conformance(Suite& s) {
  delta_rule_conformance(s, true);
}

}  // namespace quire::conformance
