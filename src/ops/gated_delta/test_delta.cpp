#include "ops/gated_delta/test_delta.h"

#include <cmath>
#include <limits>

namespace quire::conformance::delta {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kSigmas = 4.0;
constexpr uint32_t kFill = 0x7fc07fc0;  // NaN, as one float32 and as two bf16

size_t size(int64_t n) {
  return static_cast<size_t>(n);
}

// Unit vectors around a common direction.
class Directions {
 public:
  Directions(int64_t D, Rng& rng) : common_(size(D)), x_(size(D)), rng_(rng) {
    for (float& f : common_) f = rng.normal();
  }
  void draw(float spread, const Tensor& t, int64_t at) {
    double sum = 1e-12;
    for (size_t d = 0; d < x_.size(); ++d) {
      x_[d] = (1.0f - spread) * common_[d] + spread * rng_.normal();
      sum += static_cast<double>(x_[d]) * static_cast<double>(x_[d]);
    }
    for (size_t d = 0; d < x_.size(); ++d)
      store_float(t, at + static_cast<int64_t>(d), x_[d] / static_cast<float>(std::sqrt(sum)));
  }

 private:
  std::vector<float> common_, x_;
  Rng& rng_;
};

// Decays from none to complete, side by side.
float any_decay(Rng& r) {
  constexpr float kDecays[] = {0.0f, -1e-4f, -1e-2f, -0.5f, -5.0f, -20.0f, -50.0f, -1e4f};
  return kDecays[r.integer(0, 7)];
}

// S0 of a segment that has one, and the pending tokens before it.
void fill_slot(const Case& c, const Segment& s, bool decode, const DeltaState& cache, Directions& directions,
               Rng& rng) {
  if (decode ? s.anchor > 0 : s.position > 0) {
    float* state = cache.state.row<float>(s.state_slot);
    for (int64_t j = 0; j < c.Hv * c.Dv * c.Dk; ++j) state[j] = rng.normal(0.1f);
  }
  for (int64_t t = 0; decode && t < s.position - s.anchor; ++t) {
    const auto token = [&](const Tensor& x) { return s.state_slot * x.stride[0] + t * x.stride[1]; };
    for (int64_t h = 0; h < c.Hk; ++h)
      directions.draw(c.key_spread, cache.pending_k, token(cache.pending_k) + h * c.Dk);
    for (int64_t j = 0; j < c.Hv * c.Dv; ++j)
      cache.pending_u.as<float>()[token(cache.pending_u) + j] = rng.normal(0.5f);
    for (int64_t h = 0; h < c.Hv; ++h) cache.pending_g.as<float>()[token(cache.pending_g) + h] = c.g(rng);
  }
}

// One value column of one segment, walked through in float64.
class Column {
 public:
  Column(const Case& c, const Inputs& in, const Segment& s, bool decode, int64_t column, Expected& e)
      : c_(c),
        in_(in),
        s_(s),
        cache_(in.cache.views()),
        column_(column),
        hv_(column / c.Dv),
        hk_(c.key_head(hv_)),
        settled_(decode ? anchor_after_decode(s) : anchor_after_prompt(s)),
        S_(size(c.Dk)),
        k_(S_),
        e_(e) {
    const float* S0 = cache_.state.row<float>(s.state_slot) + column * c.Dk;
    if (s.anchor > 0) std::copy(S0, S0 + c.Dk, S_.begin());
    if (decode)
      for (int32_t t = s.anchor; t < s.position; ++t) replay(t);
    norm_ = length(S_);  // of S0 alone if no token is pending
    for (int32_t t = s.position; t < s.position + s.count; ++t) {
      step(t);
      if (t + 1 == settled_) keep_state();
      if (decode && t >= settled_) keep_u(t);
    }
  }

 private:
  static double length(const std::vector<double>& x) {
    double sum = 0.0;
    for (const double d : x) sum += d * d;
    return std::sqrt(sum);
  }
  void load(const Tensor& t, int64_t at, std::vector<double>& x) const {
    for (size_t d = 0; d < x.size(); ++d) x[d] = load_float(t, at + static_cast<int64_t>(d));
  }
  void advance(double decay, double u) {
    for (size_t d = 0; d < S_.size(); ++d) S_[d] = decay * S_[d] + u * k_[d];
  }

  // A pending token; what becomes of it is known exactly.
  void replay(int32_t t) {
    const auto at = [&](const Tensor& x) { return s_.state_slot * x.stride[0] + (t - s_.anchor) * x.stride[1]; };
    load(cache_.pending_k, at(cache_.pending_k) + hk_ * c_.Dk, k_);
    u_ = cache_.pending_u.as<float>()[at(cache_.pending_u) + column_];
    u_error_ = 0.0;
    advance(std::exp(static_cast<double>(cache_.pending_g.as<float>()[at(cache_.pending_g) + hv_])), u_);
    norm_ = length(S_);
    if (t + 1 == settled_) keep_state();
    if (t >= settled_) keep_u(t);
  }

  void step(int32_t t) {
    const int64_t row = s_.row + (t - s_.position), o = row * c_.Hv * c_.Dv + column_;
    const double decay = std::exp(static_cast<double>(in_.g.tensor().as<float>()[row * c_.Hv + hv_]));
    const double beta = in_.beta.tensor().as<float>()[row * c_.Hv + hv_];
    const double v = load_float(in_.v, o);
    std::vector<double> q(k_.size());
    load(in_.k, (row * c_.Hk + hk_) * c_.Dk, k_);
    load(in_.q, (row * c_.Hk + hk_) * c_.Dk, q);
    double predicted = 0.0, out = 0.0;
    for (size_t d = 0; d < S_.size(); ++d) predicted += decay * S_[d] * k_[d];
    u_ = beta * (v - predicted);
    advance(decay, u_);
    for (size_t d = 0; d < S_.size(); ++d) out += S_[d] * q[d];
    const double before = decay * norm_;
    norm_ = length(S_);
    const double local = beta * std::abs(v) + before + norm_, scale = 1.0 / std::sqrt(static_cast<double>(c_.Dk));
    u_error_ = kSigmas * (std::sqrt(error2_) * decay + local) + 1e-30;
    error2_ = decay * decay * error2_ + local * local;
    e_.out[size(o)] = out * scale;
    e_.out_error[size(o)] = kSigmas * scale * length(q) * (std::sqrt(error2_) + local) + 1e-30;
  }

  void keep_state() {
    for (int64_t d = 0; d < c_.Dk; ++d) {
      const size_t at = size((s_.state_slot * c_.Hv * c_.Dv + column_) * c_.Dk + d);
      e_.state[at] = S_[size(d)];
      // Old pending tokens alone are rounded once, too.
      e_.state_error[at] = kSigmas * std::sqrt(std::max(error2_, norm_ * norm_)) + 1e-30;
    }
  }
  void keep_u(int32_t t) {
    const size_t at = size((s_.state_slot * SlotCache::kPending + t - settled_) * c_.Hv * c_.Dv + column_);
    e_.u[at] = u_;
    e_.u_error[at] = u_error_;
  }

  const Case& c_;
  const Inputs& in_;
  const Segment& s_;
  const DeltaState cache_;
  int64_t column_, hv_, hk_;
  int32_t settled_;
  std::vector<double> S_, k_;
  double u_ = 0.0, u_error_ = 0.0, norm_ = 0.0, error2_ = 0.0;
  Expected& e_;
};

}  // namespace

SlotCache::SlotCache(const Case& c, int64_t slots)
    : parts_{{DType::kF32, {c.Hv, c.Dv, c.Dk}},
             {c.type, {kPending, c.Hk, c.Dk}},
             {DType::kF32, {kPending, c.Hv, c.Dv}},
             {DType::kF32, {kPending, c.Hv, 1}}},
      memory_(DType::kF32,
              {slots, parts_[0].floats() + parts_[1].floats() + parts_[2].floats() + parts_[3].floats() + 4 * kGap}) {
  auto* bits = static_cast<uint32_t*>(memory_.tensor().data);
  std::fill_n(bits, memory_.tensor().elems(), kFill);
}

DeltaState SlotCache::views() const {
  const Tensor& m = memory_.tensor();
  int64_t first = 0;
  const auto take = [&](const Part& p, int rank) {
    const int64_t slots = m.dim(0);
    Tensor t = rank == 4 ? make_tensor(m.bytes_at(first), p.dtype, {slots, p.shape[0], p.shape[1], p.shape[2]})
                         : make_tensor(m.bytes_at(first), p.dtype, {slots, p.shape[0], p.shape[1]});
    t.stride[0] = m.stride[0] * (p.dtype == DType::kF32 ? 1 : 2);
    first += p.floats() + kGap;
    return t;
  };
  DeltaState d;
  d.state = take(parts_[0], 4);
  d.pending_k = take(parts_[1], 4);
  d.pending_u = take(parts_[2], 4);
  d.pending_g = take(parts_[3], 3);
  return d;
}

void SlotCache::copy_slot(int64_t slot, SlotCache& to, int64_t to_slot) const {
  const Tensor& m = memory_.tensor();
  std::copy_n(static_cast<const uint32_t*>(m.data) + slot * m.stride[0], m.dim(1),
              static_cast<uint32_t*>(to.memory_.tensor().data) + to_slot * m.stride[0]);
}

bool SlotCache::gaps_intact() const {
  const Tensor& m = memory_.tensor();
  for (int64_t slot = 0; slot < m.dim(0); ++slot) {
    const auto* at = static_cast<const uint32_t*>(m.data) + slot * m.stride[0];
    for (const Part& p : parts_) {
      at += p.floats();
      for (int64_t i = 0; i < kGap; ++i)
        if (*at++ != kFill) return false;
    }
  }
  return true;
}

Inputs make_inputs(const Case& c, Rng& rng) {
  const int n = static_cast<int>(c.pieces.size());
  int64_t rows = 1;
  for (const Piece& p : c.pieces) rows += p.count + 1;
  const int64_t slots = n + 2;
  Inputs in{rows,
            slots,
            Buffer(c.type, {rows, c.Hk, c.Dk}),
            Buffer(c.type, {rows, c.Hk, c.Dk}),
            Buffer(c.type, {rows, c.Hv, c.Dv}),
            Buffer(DType::kF32, {rows, c.Hv}),
            Buffer(DType::kF32, {rows, c.Hv}),
            SlotCache(c, slots),
            {}};
  const std::vector<int32_t> slot = rng.permutation(static_cast<int>(slots));
  Directions directions(c.Dk, rng);
  const DeltaState cache = in.cache.views();
  int32_t row = 1;
  for (int i = 0; i < n; ++i) {
    const Piece& p = c.pieces[size(i)];
    const int32_t grid = p.decode ? p.position / kPendingTokens * kPendingTokens : p.position;
    const Segment s{row, p.count, p.position, slot[size(i)], p.anchor >= 0 ? p.anchor : grid, p.tentative};
    for (int64_t t = row; t < row + p.count; ++t) {
      for (int64_t h = 0; h < c.Hk; ++h) {
        directions.draw(1.0f, in.q, (t * c.Hk + h) * c.Dk);
        directions.draw(c.key_spread, in.k, (t * c.Hk + h) * c.Dk);
      }
      for (int64_t h = 0; h < c.Hv; ++h) {
        for (int64_t d = 0; d < c.Dv; ++d) store_float(in.v, (t * c.Hv + h) * c.Dv + d, rng.normal());
        in.g.tensor().as<float>()[t * c.Hv + h] = c.g(rng);
        in.beta.tensor().as<float>()[t * c.Hv + h] = c.beta(rng);
      }
    }
    fill_slot(c, s, p.decode, cache, directions, rng);
    p.decode ? in.segments.add_decode(s) : in.segments.add(s);
    row += p.count + 1;
  }
  return in;
}

GatedDeltaArgs arguments(const Case& c, const Inputs& in, const SegmentArray& segments, const SlotCache& cache,
                         const Buffer& out) {
  return {in.q, in.k, in.v, in.g, in.beta, c.heads, cache.views(), segments, out};
}

Expected oracle(const Case& c, const Inputs& in, bool decode) {
  Expected e;
  e.out.assign(size(in.rows * c.Hv * c.Dv), kNaN);
  e.state.assign(size(in.slots * c.Hv * c.Dv * c.Dk), kNaN);
  e.u.assign(size(in.slots * SlotCache::kPending * c.Hv * c.Dv), kNaN);
  e.out_error = e.out;
  e.state_error = e.state;
  e.u_error = e.u;
  for (const Segment& s : in.kind(decode)) {
    if (s.count == 0) continue;
    for (int64_t column = 0; column < c.Hv * c.Dv; ++column) Column(c, in, s, decode, column, e);
  }
  return e;
}

double unit_f32(const Case& c) {
  return (static_cast<double>(c.Dk) / 8.0 + 16.0) * kEpsF32;
}

void expect_values(Suite& s, std::string_view kernel, const std::string& name, const Tensor& got,
                   const Tensor& untouched, const std::vector<double>& want, const std::vector<double>& error,
                   double relative, double unit) {
  const std::vector<float> all = values(got), old = values(untouched);
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

std::vector<Case> common_cases(const std::vector<Piece>& pieces) {
  std::vector<Case> list;
  for (const int64_t Dk : {32, 64, 128}) {
    for (const int64_t r : {1, 2, 4}) {
      for (const HeadMap map : {HeadMap::kTiled, HeadMap::kGrouped})
        list.push_back(
            {.name = fmt::format("mixed Dk={} Hv/Hk={} {}", Dk, r, map == HeadMap::kTiled ? "tiled" : "grouped"),
             .Hk = 2,
             .Hv = 2 * r,
             .Dk = Dk,
             .Dv = Dk,
             .heads = map});
    }
  }
  list.push_back({.name = "Dk=48 Dv=80", .Dk = 48, .Dv = 80});
  list.push_back({.name = "Dk=128 Dv=64", .Dk = 128, .Dv = 64});
  list.push_back({.name = "Dk=64 Dv=128", .Dk = 64, .Dv = 128});
  list.push_back({.name = "Dk=24 Dv=7", .Dk = 24, .Dv = 7});
  list.push_back({.name = "Dk=20 Dv=33", .Dk = 20, .Dv = 33});
  list.push_back({.name = "Dk=256 Dv=256", .Hk = 1, .Hv = 2, .Dk = 256, .Dv = 256});
  list.push_back({.name = "float32", .Dk = 128, .Dv = 128, .type = DType::kF32});
  list.push_back({.name = "any decay", .g = any_decay});
  list.push_back({.name = "any decay, Dk=128", .Dk = 128, .Dv = 128, .g = any_decay});
  list.push_back({.name = "any decay, float32", .type = DType::kF32, .g = any_decay});
  list.push_back({.name = "strong decay", .g = [](Rng& r) { return -r.uniform(20.0f, 50.0f); }});
  list.push_back({.name = "no decay", .g = [](Rng&) { return 0.0f; }});
  list.push_back({.name = "beta 0", .beta = [](Rng&) { return 0.0f; }});
  list.push_back({.name = "beta 1", .beta = [](Rng&) { return 1.0f; }});
  list.push_back({.name = "nearly parallel keys",
                  .g = [](Rng& r) { return -r.uniform(0.0f, 1e-3f); },
                  .beta = [](Rng&) { return 0.999f; },
                  .key_spread = 0.02f});
  list.push_back({.name = "nearly parallel keys, Dk=128",
                  .Dk = 128,
                  .Dv = 128,
                  .g = [](Rng& r) { return -r.uniform(0.0f, 1e-3f); },
                  .beta = [](Rng& r) { return r.uniform(0.0f, 1.0f); },
                  .key_spread = 0.02f});
  for (Case& c : list) c.pieces = pieces;
  return list;
}

FormCase::FormCase(Suite& s, const Case& c, const Operator<GatedDeltaArgs>& op, bool decode)
    : s_(s), c_(c), op_(op), decode_(decode), rng_(s.rng_for_case(c.name)), in_(make_inputs(c, rng_)) {}

void FormCase::run(const SegmentArray& segments, const SlotCache& cache, const Buffer& out, int threads) {
  kernel_->launch(s_.context(Device::kCpu, threads), arguments(c_, in_, segments, cache, out));
}

void FormCase::check() {
  const Expected want = oracle(c_, in_, decode_);
  for (const auto& k : s_.kernels(op_.kernels, kNotOnGpu<GatedDeltaArgs>)) {
    const Buffer untouched = new_out(), out = untouched;
    const SlotCache cache = in_.cache;
    if (!s_.wants(k.name, c_.name) || !k.fits(s_.machine(), arguments(c_, in_, in_.segments, cache, out))) continue;
    kernel_ = &k;
    run(in_.segments, cache, out);
    expect_values(s_, k.name, c_.name, out, untouched, want.out, want.out_error,
                  c_.type == DType::kBF16 ? kEpsBf16 : kEpsF32, unit());
    expect_values(s_, k.name, c_.name + ", state", cache.views().state, in_.cache.views().state, want.state,
                  want.state_error, kEpsF32, unit());
    s_.expect(k.name, c_.name, cache.gaps_intact(), "memory between the parts of a slot is left alone");
    s_.expect_guards(k.name, c_.name, {&out, &cache.memory(), &in_.q, &in_.k, &in_.v, &in_.g, &in_.beta});

    const Buffer out1 = new_out();
    const SlotCache cache1 = in_.cache;
    run(in_.segments, cache1, out1, 1);
    s_.expect_same_bits(k.name, c_.name + ", one thread", out1, out);
    for (const Segment& seg : segments())
      expect_same_slot("one thread", seg, seg, cache1, seg.state_slot, cache, seg.state_slot);

    check_alone(out, cache);
    check_more(want, out, cache);
  }
}

void FormCase::check_alone(const Buffer& out, const SlotCache& cache) {
  for (const Segment& seg : segments()) {
    Segment other = seg;
    other.state_slot = static_cast<int32_t>((seg.state_slot + 1) % in_.slots);
    const Buffer out1 = new_out();
    SlotCache cache1 = in_.cache;
    in_.cache.copy_slot(seg.state_slot, cache1, other.state_slot);
    run(decode_ ? SegmentList({other}, {}) : SegmentList({}, {other}), cache1, out1);
    s_.expect_same_bits(kernel(), fmt::format("{}, segment at row {} alone", c_.name, seg.row),
                        out1.tensor().rows(seg.row, seg.count), out.tensor().rows(seg.row, seg.count));
    expect_same_slot("alone", other, seg, cache1, other.state_slot, cache, seg.state_slot);
  }
}

}  // namespace quire::conformance::delta
