#include <algorithm>
#include <cmath>

#include "ops/conformance/conformance.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire::conformance {
namespace {

struct Case {
  std::string name;
  int64_t Hk = 2, Hv = 4, Dk = 64, Dv = 64, Kc = 4, R = 8;
  DType type = DType::kBF16;
  float magnitude = 1.0f;
};

struct Outputs {
  Buffer q, k, v, g, beta, conv;
};

// One call's inputs: segments over shuffled slots, NaN where nothing may be read.
class Prepare {
 public:
  Prepare(Suite& s, const Case& c)
      : s_(s),
        c_(c),
        C_(2 * c.Hk * c.Dk + c.Hv * c.Dv),
        qkv_(c.type, {kRows, C_}),
        a_(c.type, {kRows, c.Hv}),
        b_(DType::kF32, {kRows, c.Hv}),
        weight_(DType::kF32, {C_, c.Kc}),
        ssm_a_(DType::kF32, {c.Hv}),
        dt_bias_(DType::kF32, {c.Hv}),
        conv_(c.type, {kSlots, c.R, C_}) {
    Rng rng = s.rng_for_case(c.name);
    // Longer and shorter than the taps' reach, longer than a kernel's block of tokens.
    struct Piece {
      int32_t count, position;
      bool decode;
    };
    constexpr Piece kPieces[] = {{1, 7, true},   {3, 1, true},   {17, 3, true}, {4, 0, true},
                                 {40, 0, false}, {2, 64, false}, {1, 0, false}};
    const std::vector<int32_t> slot = rng.permutation(kSlots);
    weight_.fill([&] { return rng.normal(0.5f); });
    ssm_a_.fill([&] { return -rng.uniform(0.0f, 16.0f); });
    dt_bias_.fill([&] { return rng.normal(3.0f); });
    int32_t row = 1;
    for (const Piece& p : kPieces) {
      const Segment seg{row, p.count, p.position, slot[segments_.size()]};
      for (int64_t t = row; t < row + p.count; ++t) {
        for (int64_t i = 0; i < C_; ++i) store_float(qkv_.tensor(), t * C_ + i, rng.normal(c.magnitude));
        for (int64_t i = 0; i < c.Hv; ++i) {
          store_float(a_.tensor(), t * c.Hv + i, rng.normal(rng.integer(0, 3) == 0 ? 40.0f : 2.0f));
          store_float(b_.tensor(), t * c.Hv + i, rng.normal(rng.integer(0, 3) == 0 ? 60.0f : 2.0f));
        }
      }
      // Only what the contract lets a kernel read: a ring of a sequence that began in a used slot is NaN
      // beyond.
      for (int64_t t = std::max(0, p.position - static_cast<int32_t>(c.Kc - 1)); t < p.position; ++t)
        for (int64_t i = 0; i < C_; ++i)
          store_float(conv_.tensor(), kept(seg.state_slot, t) + i, rng.normal(c.magnitude));
      p.decode ? segments_.add_decode(seg) : segments_.add(seg);
      row += p.count + 1;
    }
    QUIRE_CHECK(row <= kRows, "the segments take {} rows", row);
  }

  void check() {
    Outputs want = run_reference();
    const Bounds bounds = derive_bounds(want);
    for (const auto& k : s_.kernels(kGdnPrepareOp.kernels, kNotOnGpu<GdnPrepareArgs>)) {
      Outputs got = outputs(conv_);
      if (!s_.wants(k.name, c_.name) || !k.fits(s_.machine(), args(segments_, got))) continue;
      kernel_ = &k;
      k.launch(s_.context(Device::kCpu), args(segments_, got));
      expect_rows(c_.name + ", q", got.q, want.q, bounds.q);
      expect_rows(c_.name + ", k", got.k, want.k, bounds.k);
      expect_rows(c_.name + ", v", got.v, want.v, bounds.v);
      expect_rows(c_.name + ", g", got.g, want.g, bounds.g);
      expect_rows(c_.name + ", beta", got.beta, want.beta, bounds.beta);
      s_.expect_same_bits(k.name, c_.name + ", conv", got.conv, want.conv.as(c_.type));
      s_.expect_guards(k.name, c_.name, {&got.q, &got.k, &got.v, &got.g, &got.beta, &got.conv, &qkv_, &a_, &b_});

      Outputs one = outputs(conv_);
      k.launch(s_.context(Device::kCpu, 1), args(segments_, one));
      expect_all_bits(c_.name + ", one thread", one, got);
      for (const int32_t step : {1, 2, 5, 16}) in_pieces(step, got);
      rollback(got);
    }
  }

 private:
  static constexpr int64_t kRows = 80, kSlots = 12;
  struct Bounds {
    std::vector<double> q, k, v, g, beta;
  };

  // The element of the ring that holds a position's first channel.
  int64_t kept(int64_t slot, int64_t position) const { return (slot * c_.R + position % c_.R) * C_; }

  Outputs outputs(const Buffer& conv) const {
    return {Buffer(c_.type, {kRows, c_.Hk, c_.Dk}), Buffer(c_.type, {kRows, c_.Hk, c_.Dk}),
            Buffer(c_.type, {kRows, c_.Hv, c_.Dv}), Buffer(DType::kF32, {kRows, c_.Hv}),
            Buffer(DType::kF32, {kRows, c_.Hv}),    conv};
  }
  GdnPrepareArgs args(const SegmentArray& segments, const Outputs& o) const {
    return {qkv_, a_, b_, weight_, ssm_a_, dt_bias_, {.conv = o.conv}, segments, o.q, o.k, o.v, o.g, o.beta};
  }

  Outputs run_reference() const {
    Case c32 = c_;
    c32.type = DType::kF32;
    Outputs want{Buffer(DType::kF32, {kRows, c_.Hk, c_.Dk}), Buffer(DType::kF32, {kRows, c_.Hk, c_.Dk}),
                 Buffer(DType::kF32, {kRows, c_.Hv, c_.Dv}), Buffer(DType::kF32, {kRows, c_.Hv}),
                 Buffer(DType::kF32, {kRows, c_.Hv}),        conv_.as(DType::kF32)};
    GdnPrepareArgs r = args(segments_, want);
    const Buffer qkv32 = qkv_.as(DType::kF32), a32 = a_.as(DType::kF32);
    r.qkv = qkv32;
    r.a = a32;
    kGdnPrepareOp.reference().launch(s_.context(Device::kReference), r);
    return want;
  }

  // The convolution adds Kc products: its error is a few units of the sum of their magnitudes, which SiLU
  // (slope at most 1.1) passes on. A head's norm errs by its own rounding and by its elements' errors.
  Bounds derive_bounds(const Outputs& want) const {
    Bounds b;
    const double out_eps = c_.type == DType::kBF16 ? kEpsBf16 : kEpsF32;
    const auto heads = [&](const Buffer& w, int64_t first, bool norm) {
      const std::vector<float> value = w.values();
      std::vector<double> bound(value.size(), 0.0);
      const int64_t H = w.tensor().dim(1), D = w.tensor().dim(2);
      for (const Segment& seg : SegmentArray(segments_)) {
        for (int64_t t = 0; t < seg.count; ++t) {
          for (int64_t h = 0; h < H; ++h) {
            double sum = 0.0, mag2 = 0.0;
            std::vector<double> mag(static_cast<size_t>(D));
            for (int64_t d = 0; d < D; ++d) {
              const auto [y, m] = convolution(seg, t, first + h * D + d);
              sum += y * y;
              mag2 += m * m;
              mag[static_cast<size_t>(d)] = m;
            }
            const double scale = norm ? 1.0 / std::sqrt(sum + 1e-6) : 1.0;
            for (int64_t d = 0; d < D; ++d) {
              const auto at = static_cast<size_t>(((seg.row + t) * H + h) * D + d);
              const double v = std::abs(static_cast<double>(value[at]));
              bound[at] = v * (out_eps + 32.0 * kEpsF32) + 8.0 * kEpsF32 * scale * mag[static_cast<size_t>(d)];
              if (norm) bound[at] += v * 8.0 * kEpsF32 * scale * std::sqrt(mag2);
            }
          }
        }
      }
      return bound;
    };
    b.q = heads(want.q, 0, true);
    b.k = heads(want.k, c_.Hk * c_.Dk, true);
    b.v = heads(want.v, 2 * c_.Hk * c_.Dk, false);
    const std::vector<float> g = want.g.values(), beta = want.beta.values(), a = a_.values();
    for (size_t i = 0; i < g.size(); ++i) {
      const size_t h = i % static_cast<size_t>(c_.Hv);
      const double x =
          std::abs(static_cast<double>(a[i])) + std::abs(static_cast<double>(dt_bias_.tensor().as<float>()[h]));
      // The rounding of a + dt_bias moves softplus by a relative |x| units at most.
      b.g.push_back(std::abs(static_cast<double>(g[i])) * (8.0 + x) * kEpsF32 + 1e-36);
      b.beta.push_back(std::abs(static_cast<double>(beta[i])) * 8.0 * kEpsF32 + 1e-36);
    }
    return b;
  }

  // SiLU of the convolution of one channel, and the sum of its terms' magnitudes.
  std::pair<double, double> convolution(const Segment& seg, int64_t t, int64_t channel) const {
    double x = 0.0, mag = 0.0;
    for (int64_t i = 0; i < c_.Kc; ++i) {
      const int64_t at = t - (c_.Kc - 1) + i;
      double input = 0.0;
      if (at >= 0)
        input = static_cast<double>(load_float(qkv_.tensor(), (seg.row + at) * C_ + channel));
      else if (seg.position + at >= 0)
        input = static_cast<double>(load_float(conv_.tensor(), kept(seg.state_slot, seg.position + at) + channel));
      const double term = input * static_cast<double>(weight_.tensor().as<float>()[channel * c_.Kc + i]);
      x += term;
      mag += std::abs(term);
    }
    return {x / (1.0 + std::exp(-x)), mag};
  }

  void expect_rows(const std::string& name, const Buffer& got, const Buffer& want, const std::vector<double>& bound) {
    const int64_t width = got.tensor().stride[0];
    const std::vector<float> g = got.values(), w = want.values();
    std::vector<float> part, part_want;
    std::vector<double> part_bound;
    size_t written = 0;
    for (const Segment& seg : SegmentArray(segments_)) {
      for (auto i = static_cast<size_t>(seg.row * width); i < static_cast<size_t>((seg.row + seg.count) * width); ++i) {
        part.push_back(g[i]);
        part_want.push_back(w[i]);
        part_bound.push_back(bound[i]);
      }
    }
    for (const float x : g) written += std::isnan(x) ? 0 : 1;
    s_.expect_close(kernel_->name, name, worst_excess(part, part_want, part_bound));
    s_.expect(kernel_->name, name, written == part.size(), "rows of no segment are left alone");
  }

  void expect_all_bits(const std::string& name, const Outputs& got, const Outputs& want) {
    s_.expect_same_bits(kernel_->name, name + ", q", got.q, want.q);
    s_.expect_same_bits(kernel_->name, name + ", k", got.k, want.k);
    s_.expect_same_bits(kernel_->name, name + ", v", got.v, want.v);
    s_.expect_same_bits(kernel_->name, name + ", g", got.g, want.g);
    s_.expect_same_bits(kernel_->name, name + ", beta", got.beta, want.beta);
    s_.expect_same_bits(kernel_->name, name + ", conv", got.conv, want.conv);
  }

  // Any cut gives the same bits: `step` tokens of every segment at a time.
  void in_pieces(int32_t step, const Outputs& want) {
    Outputs got = outputs(conv_);
    const auto decodes = static_cast<size_t>(SegmentArray(segments_).decodes);
    for (int32_t t = 0; t < 40; t += step) {
      SegmentList pieces;
      for (size_t i = 0; i < segments_.size(); ++i) {
        Segment seg = segments_[i];
        if (t >= seg.count) continue;
        seg.row += t;
        seg.position += t;
        seg.count = std::min(step, seg.count - t);
        i < decodes ? pieces.add_decode(seg) : pieces.add(seg);
      }
      kernel_->launch(s_.context(Device::kCpu), args(pieces, got));
    }
    expect_all_bits(fmt::format("{}, {} at a time", c_.name, step), got, want);
  }

  // The 17 rows again, four or fewer at a time, of which only the first is right and kept: the same bits.
  void rollback(const Outputs& want) {
    const Segment& seg = segments_[2];
    const int32_t rows = std::min<int32_t>(4, static_cast<int32_t>(c_.R - c_.Kc) + 2);
    Outputs got = outputs(conv_);
    for (int32_t t = 0; t < seg.count; ++t) {
      Segment s = seg;
      s.row += t;
      s.position += t;
      s.count = std::min(rows, seg.count - t);
      s.tentative = s.count - 1;
      Buffer guesses = qkv_;
      for (int64_t i = (s.row + 1) * C_; i < (s.row + s.count) * C_; ++i)
        store_float(guesses.tensor(), i, 3.0f * c_.magnitude);
      const SegmentList one({s}, {});
      GdnPrepareArgs a = args(one, got);
      a.qkv = guesses;
      kernel_->launch(s_.context(Device::kCpu), a);
    }
    s_.expect_same_bits(kernel_->name, c_.name + ", rollback", got.v.tensor().rows(seg.row, seg.count),
                        want.v.tensor().rows(seg.row, seg.count));
    s_.expect_same_bits(kernel_->name, c_.name + ", rollback, conv", got.conv.tensor().rows(seg.state_slot, 1),
                        want.conv.tensor().rows(seg.state_slot, 1));
  }

  Suite& s_;
  const Case& c_;
  int64_t C_;
  Buffer qkv_, a_, b_, weight_, ssm_a_, dt_bias_, conv_;
  SegmentList segments_;
  const Tested<GdnPrepareArgs>* kernel_ = nullptr;
};

}  // namespace

void gdn_prepare_conformance(Suite& s) {
  const Case cases[] = {
      {.name = "Dk=64"},
      {.name = "Dk=128", .Dk = 128, .Dv = 128},
      {.name = "Dk=32, one key head", .Hk = 1, .Hv = 4, .Dk = 32, .Dv = 32},
      {.name = "odd sizes", .Hk = 3, .Hv = 3, .Dk = 20, .Dv = 37},
      {.name = "Dk=256, 19 heads", .Hk = 1, .Hv = 19, .Dk = 256, .Dv = 48},
      {.name = "2 taps", .Kc = 2},
      {.name = "3 taps", .Kc = 3},
      {.name = "7 taps", .Kc = 7},
      {.name = "7 taps, a ring of 32", .Kc = 7, .R = 32},
      {.name = "1 tap, a ring of 1", .Kc = 1, .R = 1},
      {.name = "2 taps, a ring of 2", .Kc = 2, .R = 2},
      {.name = "float32", .type = DType::kF32},
      {.name = "tiny inputs", .magnitude = 1e-4f},
      {.name = "large inputs", .magnitude = 300.0f},
  };
  for (const Case& c : cases)
    if (s.wants_case(c.name)) Prepare(s, c).check();
}

}  // namespace quire::conformance
