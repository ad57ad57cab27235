// Cases of the whole region, from the projections' rows to the normed result: lives of sequences, prompts and what is
// generated after them, against the recurrence in float64, and bit for bit however they are cut into steps, whoever
// shares these, and whatever drafts were wrong.
#include "ops/conformance/gpu.h"
#include "ops/gated_delta/test_delta.h"

namespace quire::conformance {
namespace {

using namespace delta;

constexpr int64_t kTaps = 4, kRing = 8;

constexpr OnGpu<GatedDeltaNetArgs> kOnGpu{
    [](Operands& o, GatedDeltaNetArgs& a) {
      DeltaState& c = a.cache;
      for (Tensor* t : {&a.qkv,         &a.z,     &a.a,         &a.b,         &a.conv_weight, &a.ssm_a, &a.dt_bias,
                        &a.norm_weight, &c.state, &c.pending_k, &c.pending_u, &c.pending_g,   &c.conv,  &a.q,
                        &a.k,           &a.v,     &a.g,         &a.beta,      &a.o,           &a.y})
        o.tensor(*t);
      o.segments(a.segments);
    },
    gated_delta_net};

// A sequence from `start`, whose state is given, to a multiple of kPendingTokens, so that it ends in a state.
struct Life {
  int32_t start, prompt, generated;
};
struct NetCase {
  std::string name;
  int64_t Hk = 2, Hv = 4, D = 128;
  HeadMap heads = HeadMap::kTiled;
  DType type = DType::kBF16;
  std::vector<Life> lives = {{0, 70, 26}, {0, 0, 32}, {64, 130, 30}, {48, 0, 32}, {70, 0, 42}, {128, 64, 16}};

  Case as_case() const { return {.name = name, .Hk = Hk, .Hv = Hv, .Dk = D, .Dv = D, .heads = heads, .type = type}; }
  int64_t channels() const { return (2 * Hk + Hv) * D; }
};

enum class Cut {
  kAlone,   // prompts whole, then a token a step
  kBatch,   // the same, all sequences in every step
  kPieces,  // prompts on the grid of 64, several generated tokens a step, in any company
  kDrafts,  // likewise, the last of them tentative and some wrong
};

class Net {
 public:
  Net(Suite& s, const NetCase& c)
      : s_(s),
        c_(c),
        rows_(count_rows(c)),
        slots_(std::ssize(c.lives) + 2),
        rng_(s.rng_for_case(c.name)),
        qkv_(c.type, {rows_ + 1, c.channels()}),
        z_(c.type, {rows_ + 1, c.Hv * c.D}),
        a_(c.type, {rows_ + 1, c.Hv}),
        b_(DType::kF32, {rows_ + 1, c.Hv}),
        conv_weight_(DType::kF32, {c.channels(), kTaps}),
        ssm_a_(DType::kF32, {c.Hv}),
        dt_bias_(DType::kF32, {c.Hv}),
        norm_weight_(DType::kF32, {c.D}),
        cache_(case_, slots_),
        conv_(c.type, {slots_, kRing, c.channels()}) {
    conv_weight_.fill([&] { return rng_.uniform(-0.6f, 0.6f); });
    ssm_a_.fill([&] { return -rng_.uniform(0.5f, 1.5f); });
    dt_bias_.fill([&] { return rng_.uniform(-0.5f, 0.5f); });
    norm_weight_.fill([&] { return rng_.uniform(0.5f, 1.5f); });
    const std::vector<int32_t> slot = rng_.permutation(static_cast<int>(slots_));
    int64_t row = 0;
    for (size_t i = 0; i < c.lives.size(); ++i) {
      first_.push_back(row);
      slot_.push_back(slot[i]);
      row += c.lives[i].prompt + c.lives[i].generated;
      begin(i);
    }
    // The row behind the last is nobody's, and NaN.
    for (const auto& [t, sd] : {std::pair{&qkv_, 1.0f}, {&z_, 2.0f}, {&a_, 3.0f}, {&b_, 2.0f}})
      for (int64_t e = 0; e < rows_ * t->tensor().dim(1); ++e) store_float(*t, e, rng_.normal(sd));
  }

  void check() {
    Expected want;
    for (const auto& k : s_.kernels(kGatedDeltaNetOp.kernels, kOnGpu)) {
      if (!s_.wants(k.name, c_.name) || !fits(k)) continue;
      if (want.out.empty()) want = expected();
      const Played alone = play(k, Cut::kAlone);
      expect_close(k.name, alone, want);
      s_.expect(k.name, c_.name, alone.cache.gaps_intact(), "memory between the parts of a slot is left alone");
      s_.expect_guards(k.name, c_.name, {&alone.y, &alone.cache.memory(), &alone.conv, &qkv_, &z_, &a_, &b_});
      expect_others_untouched(k.name, alone);
      expect_same(k.name, "in a batch", play(k, Cut::kBatch), alone);
      expect_same(k.name, "in pieces", play(k, Cut::kPieces), alone);
      expect_same(k.name, "with drafts", play(k, Cut::kDrafts), alone);
    }
  }

 private:
  // Results of all tokens, and the slots in the end.
  struct Played {
    Buffer y;
    SlotCache cache;
    Buffer conv;
  };
  struct Progress {
    int32_t done = 0, anchor = 0;
  };
  struct Piece {
    size_t life;
    int32_t count, tentative = 0, wrong = 0;  // wrong: of the tentative ones
    bool decode = false;
  };

  static int64_t count_rows(const NetCase& c) {
    int64_t rows = 0;
    for (const Life& l : c.lives) rows += l.prompt + l.generated;
    return rows;
  }

  // The state before the first token, and the inputs of the convolution.
  void begin(size_t i) {
    const Life& l = c_.lives[i];
    if (l.start == 0) return;
    float* const state = cache_.views().state.row<float>(slot_[i]);
    for (int64_t j = 0; j < c_.Hv * c_.D * c_.D; ++j) state[j] = rng_.normal(0.1f);
    for (int32_t p = l.start - static_cast<int32_t>(kTaps) + 1; p < l.start; ++p)
      for (int64_t e = 0; e < c_.channels(); ++e)
        store_float(conv_, (slot_[i] * kRing + p % kRing) * c_.channels() + e, rng_.normal());
  }

  bool fits(const Tested<GatedDeltaNetArgs>& k) const {
    const std::vector<int32_t> nobody{static_cast<int32_t>(rows_)};
    bool taken = false;
    (void)with_arguments(nobody, SegmentList(), {Buffer(c_.type, {1, 1}), cache_, conv_},
                         [&](const GatedDeltaNetArgs& args, const auto&) { taken = k.fits(s_.machine(), args); });
    return taken;
  }

  // One step. Rows of nobody lie before, between and behind the segments.
  void step(const Tested<GatedDeltaNetArgs>& k, std::vector<Piece> pieces, std::vector<Progress>& progress,
            const Played& to) {
    std::stable_partition(pieces.begin(), pieces.end(), [](const Piece& p) { return p.decode; });
    std::vector<int32_t> from{static_cast<int32_t>(rows_)};
    SegmentList segments;
    for (const Piece& p : pieces) {
      const Progress& at = progress[p.life];
      const int32_t position = c_.lives[p.life].start + at.done;
      const Segment seg{.row = static_cast<int32_t>(from.size()),
                        .count = p.count,
                        .position = position,
                        .state_slot = slot_[p.life],
                        .anchor = p.decode ? at.anchor : position,
                        .tentative = p.tentative};
      p.decode ? segments.add_decode(seg) : segments.add(seg);
      for (int32_t t = 0; t < p.count; ++t) {
        const bool wrong = t >= p.count - p.wrong;
        const int64_t row = first_[p.life] + at.done + t;
        from.push_back(static_cast<int32_t>(wrong ? (row + rows_ / 2) % rows_ : row));
      }
      from.push_back(static_cast<int32_t>(rows_));
    }
    const Buffer y = launch(k, from, segments, to);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      Progress& at = progress[p.life];
      const int32_t good = p.count - p.wrong;
      for (int64_t e = 0; e < good * c_.Hv * c_.D; ++e)
        store_float(to.y, (first_[p.life] + at.done) * c_.Hv * c_.D + e,
                    load_float(y, segments[i].row * c_.Hv * c_.D + e));
      at.anchor = p.decode ? anchor_after_decode(segments[i]) : anchor_after_prompt(segments[i]);
      at.done += good;
    }
  }

  Buffer launch(const Tested<GatedDeltaNetArgs>& k, const std::vector<int32_t>& from, const SegmentArray& segments,
                const Played& to) {
    return with_arguments(from, segments, to, [&](const GatedDeltaNetArgs& args, const auto& intact) {
      k.launch(s_.context(Device::kCpu), args);
      if (!intact()) s_.expect(k.name, c_.name, false, "wrote outside of its rows");
    });
  }

  // Calls use(args, whether all guards are intact) with a step of these rows, and returns its y.
  template <class Use>
  Buffer with_arguments(const std::vector<int32_t>& from, const SegmentArray& segments, const Played& to,
                        Use&& use) const {
    const auto T = std::ssize(from);
    const Buffer qkv = qkv_.gather(from), z = z_.gather(from), a = a_.gather(from), b = b_.gather(from);
    const Buffer q(c_.type, {T, c_.Hk, c_.D}), keys(q), v(c_.type, {T, c_.Hv, c_.D}), o(v);
    const Buffer g(DType::kF32, {T, c_.Hv}), beta(g);
    Buffer y(c_.type, {T, c_.Hv * c_.D});
    GatedDeltaNetArgs args{.qkv = qkv,
                           .z = z,
                           .a = a,
                           .b = b,
                           .conv_weight = conv_weight_,
                           .ssm_a = ssm_a_,
                           .dt_bias = dt_bias_,
                           .norm_weight = norm_weight_,
                           .heads = c_.heads,
                           .cache = to.cache.views(),
                           .segments = segments,
                           .q = q,
                           .k = keys,
                           .v = v,
                           .g = g,
                           .beta = beta,
                           .o = o,
                           .y = y};
    args.cache.conv = to.conv;
    use(args, [&] { return y.guards_intact() && o.guards_intact() && qkv.guards_intact(); });
    return y;
  }

  Played play(const Tested<GatedDeltaNetArgs>& k, Cut cut) {
    Played p{Buffer(c_.type, {rows_, c_.Hv * c_.D}), cache_, conv_};
    std::vector<Progress> progress(c_.lives.size());
    for (size_t i = 0; i < progress.size(); ++i) progress[i].anchor = c_.lives[i].start;
    if (cut == Cut::kAlone) {
      for (size_t i = 0; i < progress.size(); ++i)
        while (left(i, progress[i]) > 0) step(k, {next(i, progress[i], cut)}, progress, p);
      return p;
    }
    for (;;) {
      std::vector<Piece> pieces;
      bool more = false;
      for (size_t i = 0; i < progress.size(); ++i) {
        if (left(i, progress[i]) == 0) continue;
        more = true;
        if (cut == Cut::kBatch || rng_.integer(0, 3) > 0) pieces.push_back(next(i, progress[i], cut));
      }
      if (!more) return p;
      std::shuffle(pieces.begin(), pieces.end(), rng_.engine());
      if (!pieces.empty()) step(k, std::move(pieces), progress, p);
    }
  }
  int32_t left(size_t i, const Progress& at) const { return c_.lives[i].prompt + c_.lives[i].generated - at.done; }
  // What a sequence computes next.
  Piece next(size_t i, const Progress& at, Cut cut) {
    const bool whole = cut == Cut::kAlone || cut == Cut::kBatch;
    if (const int32_t prompt = c_.lives[i].prompt - at.done; prompt > 0)
      return {.life = i, .count = whole ? prompt : std::min(prompt, kChunkTokens)};
    // On a GPU all rows since the anchor have their place among the pending tokens.
    const int32_t room = static_cast<int32_t>(SlotCache::kPending) - (c_.lives[i].start + at.done - at.anchor);
    Piece p{.life = i, .count = 1, .decode = true};
    if (!whole) p.count = std::min({left(i, at), room, rng_.integer(1, 4)});
    if (cut != Cut::kDrafts || p.count == left(i, at)) return p;
    p.tentative = rng_.integer(0, p.count - 1);
    p.wrong = rng_.integer(0, p.tentative);
    return p;
  }

  // The recurrence over all tokens of every sequence, from what the reference prepares.
  Expected expected() {
    Case f32 = case_;
    f32.type = DType::kF32;
    Inputs in{rows_,
              slots_,
              Buffer(DType::kF32, {rows_, c_.Hk, c_.D}),
              Buffer(DType::kF32, {rows_, c_.Hk, c_.D}),
              Buffer(DType::kF32, {rows_, c_.Hv, c_.D}),
              Buffer(DType::kF32, {rows_, c_.Hv}),
              Buffer(DType::kF32, {rows_, c_.Hv}),
              SlotCache(f32, slots_),
              {}};
    for (size_t i = 0; i < c_.lives.size(); ++i) {
      const Life& l = c_.lives[i];
      in.segments.add({.row = static_cast<int32_t>(first_[i]),
                       .count = l.prompt + l.generated,
                       .position = l.start,
                       .state_slot = slot_[i],
                       .anchor = l.start});
      const float* const state = cache_.views().state.row<float>(slot_[i]);
      std::copy_n(state, c_.Hv * c_.D * c_.D, in.cache.views().state.row<float>(slot_[i]));
    }
    const Buffer qkv = qkv_.as(DType::kF32), a = a_.as(DType::kF32), conv = conv_.as(DType::kF32);
    kGdnPrepareOp.reference().launch(s_.context(Device::kReference), {qkv.tensor().rows(0, rows_),
                                                                      a.tensor().rows(0, rows_),
                                                                      b_.tensor().rows(0, rows_),
                                                                      conv_weight_,
                                                                      ssm_a_,
                                                                      dt_bias_,
                                                                      {.conv = conv},
                                                                      in.segments,
                                                                      in.q,
                                                                      in.k,
                                                                      in.v,
                                                                      in.g,
                                                                      in.beta});
    return oracle(f32, in, false);
  }

  // Queries, keys, values and the factors of products are rounded to bf16 on their way: a unit of one such rounding for
  // every step. An error of o also moves what o is divided by.
  void expect_close(std::string_view kernel, const Played& got, const Expected& want) {
    const double unit = c_.type == DType::kBF16 ? kEpsBf16 : unit_f32(case_);
    const double rounding = 1.01 * (c_.type == DType::kBF16 ? kEpsBf16 : 16 * kEpsF32);
    std::vector<double> y(want.out.size()), bound(y.size());
    for (size_t head = 0; head < y.size(); head += static_cast<size_t>(c_.D)) {
      const auto D = static_cast<size_t>(c_.D);
      double sum = 1e-6 * static_cast<double>(c_.D), error_sum = 0.0;
      for (size_t d = head; d < head + D; ++d) {
        sum += want.out[d] * want.out[d];
        error_sum += want.out_error[d] * want.out_error[d];
      }
      for (size_t d = head; d < head + D; ++d) {
        const auto z = static_cast<double>(load_float(z_, static_cast<int64_t>(d)));
        const double gate = static_cast<double>(norm_weight_.tensor().as<float>()[d - head]) * z /
                            (1.0 + std::exp(-z)) / std::sqrt(sum / static_cast<double>(c_.D));
        y[d] = want.out[d] * gate;
        bound[d] = rounding * std::abs(y[d]) +
                   unit * std::abs(gate) * (want.out_error[d] + std::abs(want.out[d]) * std::sqrt(error_sum / sum)) +
                   1e-30;
      }
    }
    s_.expect_close(kernel, c_.name, worst_excess(got.y.values(), y, bound));
    for (const int32_t slot : slot_) {
      const std::vector<float> state = values(got.cache.views().state.rows(slot, 1));
      const auto at = static_cast<std::ptrdiff_t>(slot) * std::ssize(state);
      std::vector<double> part(want.state.begin() + at, want.state.begin() + at + std::ssize(state)), limit;
      for (size_t i = 0; i < part.size(); ++i)
        limit.push_back(kEpsF32 * std::abs(part[i]) + unit * want.state_error[static_cast<size_t>(at) + i]);
      s_.expect_close(kernel, fmt::format("{}, state of slot {}", c_.name, slot), worst_excess(state, part, limit));
    }
  }

  void expect_others_untouched(std::string_view kernel, const Played& got) {
    for (int32_t slot = 0; slot < slots_; ++slot) {
      if (std::find(slot_.begin(), slot_.end(), slot) != slot_.end()) continue;
      s_.expect_same_bits(kernel, c_.name + ", another's slot", got.cache.memory().tensor().rows(slot, 1),
                          cache_.memory().tensor().rows(slot, 1));
      s_.expect_same_bits(kernel, c_.name + ", another's inputs", got.conv.tensor().rows(slot, 1),
                          conv_.tensor().rows(slot, 1));
    }
  }

  void expect_same(std::string_view kernel, const char* what, const Played& got, const Played& alone) {
    s_.expect_same_bits(kernel, fmt::format("{}, {}", c_.name, what), got.y, alone.y);
    for (const int32_t slot : slot_)
      s_.expect_same_bits(kernel, fmt::format("{}, {}, state of slot {}", c_.name, what, slot),
                          got.cache.views().state.rows(slot, 1), alone.cache.views().state.rows(slot, 1));
  }

  Suite& s_;
  const NetCase& c_;
  const Case case_ = c_.as_case();
  int64_t rows_, slots_;
  Rng rng_;
  Buffer qkv_, z_, a_, b_, conv_weight_, ssm_a_, dt_bias_, norm_weight_;
  SlotCache cache_;
  Buffer conv_;
  std::vector<int64_t> first_;  // of a life, its first row
  std::vector<int32_t> slot_;
};

}  // namespace

void gated_delta_net_conformance(Suite& s) {
  const NetCase cases[] = {
      {.name = "tiled"},
      {.name = "grouped", .heads = HeadMap::kGrouped},
      {.name = "four value heads a key head", .Hk = 2, .Hv = 8},
      {.name = "one key head", .Hk = 1, .Hv = 4},
      {.name = "heads of 64", .D = 64},
      {.name = "float32", .D = 64, .type = DType::kF32},
      {.name = "a prompt of one token", .lives = {{0, 1, 15}}},
      {.name = "prompts alone", .lives = {{0, 64, 0}, {64, 16, 0}, {0, 128, 0}, {192, 80, 0}}},
  };
  for (const NetCase& c : cases)
    if (s.wants_case(c.name)) Net(s, c).check();
}

}  // namespace quire::conformance
