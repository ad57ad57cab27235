// Cases of the recurrent form: every number of pending tokens, several rows per segment, tentative rows. Every
// kernel, the reference included, answers to the plain recurrence in float64, and to itself: no cut and no
// draft may change a bit.
#include "ops/gated_delta/test_delta.h"

namespace quire::conformance {
namespace {

using namespace delta;

class Recurrent : public FormCase {
 public:
  Recurrent(Suite& s, const Case& c) : FormCase(s, c, kGdnRecurrentOp, true) {}

 private:
  void check_more(const Expected& want, const Buffer& out, const SlotCache& cache) override {
    expect_pending(cache, want);
    expect_others_untouched(cache);
    for (const int32_t step : {1, 3, 16}) in_pieces(step, out, cache);
  }

  // The part of a slot that has a meaning after `seg`.
  static Tensor pending_of(const Tensor& pending, int64_t slot, const Segment& seg) {
    Tensor t = pending.rows(slot, 1);
    t.shape[1] = seg.position + seg.count - anchor_after_decode(seg);
    return t;
  }

  void expect_pending(const SlotCache& cache, const Expected& want) {
    const DeltaState got = cache.views(), old = in_.cache.views();
    std::vector<float> u;
    std::vector<double> u_want, u_bound;
    for (const Segment& seg : segments()) {
      if (seg.count == 0) continue;
      const int32_t anchor = anchor_after_decode(seg);
      const std::vector<float> part = values(pending_of(got.pending_u, seg.state_slot, seg));
      size_t at = static_cast<size_t>(seg.state_slot * SlotCache::kPending * c_.Hv * c_.Dv);
      for (const float x : part) {
        u.push_back(x);
        u_want.push_back(want.u[at]);
        u_bound.push_back(kEpsF32 * std::abs(want.u[at]) * (want.u_error[at] > 0 ? 1 : 0) + unit() * want.u_error[at]);
        ++at;
      }
      const std::string name = fmt::format("{}, pending tokens at row {}", c_.name, seg.row);
      for (int32_t t = anchor; t < seg.position + seg.count; ++t) {
        const int64_t row = seg.row + (t - seg.position);
        const auto token = [&](const Tensor& x, int64_t i) {
          Tensor one = x.rows(seg.state_slot, 1);
          one.data = one.bytes_at(i * one.stride[1]);
          one.shape[1] = 1;
          return one;
        };
        const auto of_row = [&](const Buffer& b) {
          Tensor one = b.tensor().rows(row, 1);  // [1, heads, D] as [1, 1, heads, D]
          one.rank += 1;
          for (size_t i = 3; i > 0; --i) {
            one.shape[i] = one.shape[i - 1];
            one.stride[i] = one.stride[i - 1];
          }
          return one;
        };
        const bool is_old = t < seg.position;
        s_.expect_same_bits(kernel(), name + ", keys", token(got.pending_k, t - anchor),
                            is_old ? token(old.pending_k, t - seg.anchor) : of_row(in_.k));
        s_.expect_same_bits(kernel(), name + ", decays", token(got.pending_g, t - anchor),
                            is_old ? token(old.pending_g, t - seg.anchor) : of_row(in_.g));
      }
    }
    s_.expect_close(kernel(), c_.name + ", pending tokens", worst_excess(u, u_want, u_bound));
  }

  void expect_others_untouched(const SlotCache& cache) {
    std::vector<bool> own(static_cast<size_t>(in_.slots));
    for (const Segment& seg : segments())
      if (seg.count > 0) own[static_cast<size_t>(seg.state_slot)] = true;
    for (int64_t slot = 0; slot < in_.slots; ++slot)
      if (!own[static_cast<size_t>(slot)])
        s_.expect_same_bits(kernel(), c_.name + ", another's slot", cache.memory().tensor().rows(slot, 1),
                            in_.cache.memory().tensor().rows(slot, 1));
  }

  void expect_same_slot(const std::string& what, const Segment& seg, const Segment& other, const SlotCache& a,
                        int64_t slot_a, const SlotCache& b, int64_t slot_b) override {
    if (seg.count == 0 || anchor_after_decode(seg) != anchor_after_decode(other)) return;
    const std::string name = fmt::format("{}, {}, row {}", c_.name, what, other.row);
    const DeltaState x = a.views(), y = b.views();
    s_.expect_same_bits(kernel(), name + ", state", x.state.rows(slot_a, 1), y.state.rows(slot_b, 1));
    const auto same = [&](const char* part, const Tensor& p, const Tensor& q) {
      s_.expect_same_bits(kernel(), name + part, pending_of(p, slot_a, seg), pending_of(q, slot_b, other));
    };
    same(", pending_k", x.pending_k, y.pending_k);
    same(", pending_u", x.pending_u, y.pending_u);
    same(", pending_g", x.pending_g, y.pending_g);
  }

  // `step` rows of every segment at a time. A tentative row counts as accepted once the next piece follows
  // it.
  void in_pieces(int32_t step, const Buffer& out, const SlotCache& cache) {
    const Buffer out1 = new_out();
    const SlotCache cache1 = in_.cache;
    const SegmentArray all = segments();
    std::vector<Segment> last(all.begin(), all.end());
    for (Segment& seg : last) seg.count = seg.tentative = 0;
    for (bool more = true; more;) {
      SegmentList pieces;
      more = false;
      for (size_t i = 0; i < last.size(); ++i) {
        const Segment& seg = all.data[i];
        Segment& piece = last[i];
        if (piece.count > 0) piece.anchor = anchor_after_decode(piece);
        piece.row += piece.count;
        piece.position += piece.count;
        const int32_t left = seg.row + seg.count - piece.row;
        piece.count = std::min(step, left);
        piece.tentative = std::max(0, seg.tentative - (left - piece.count));
        piece.tentative = std::min(piece.tentative, piece.count);
        if (piece.count == 0) continue;
        pieces.add_decode(piece);
        more = more || left > piece.count;
      }
      run(pieces, cache1, out1);
      for (size_t i = 0; more && i < last.size(); ++i)
        if (last[i].row + last[i].count == all.data[i].row + all.data[i].count)
          done(last[i], all.data[i], cache1, cache);
    }
    const std::string name = fmt::format("{} at a time", step);
    s_.expect_same_bits(kernel(), c_.name + ", " + name, out1, out);
    for (size_t i = 0; i < last.size(); ++i)
      if (last[i].count > 0) done(last[i], all.data[i], cache1, cache);
  }
  void done(const Segment& piece, const Segment& seg, const SlotCache& a, const SlotCache& b) {
    expect_same_slot("in pieces", piece, seg, a, piece.state_slot, b, seg.state_slot);
  }
};

// A sequence of kTokens generated tokens, once plainly and once with drafts of which some are accepted: the
// same bits.
class Rollback {
 public:
  Rollback(Suite& s, const Case& c, int32_t anchor, int32_t position)
      : s_(s), c_(c), anchor_(anchor), position_(position), rng_(s.rng_for_case(c.name)) {}

  void check() {
    // Row i of the first half is the token at position_ + i, row i of the second half a wrong guess.
    Case source = c_;
    source.pieces = {{2 * kTokens, position_, true, anchor_}};
    const Inputs in = make_inputs(source, rng_);
    for (const auto& k : s_.kernels(kGdnRecurrentOp.kernels, kNotOnGpu<GatedDeltaArgs>)) {
      Buffer out(c_.type, {in.rows, c_.Hv, c_.Dv});
      if (!s_.wants(k.name, c_.name) || !k.fits(s_.machine(), arguments(c_, in, in.segments, in.cache, out))) continue;
      const Segment& all = in.segments[0];
      SlotCache plain = in.cache, drafted = in.cache;
      Segment s{all.row, 1, position_, all.state_slot, anchor_};
      for (int32_t t = 0; t < kTokens; ++t) {
        k.launch(s_.context(Device::kCpu), arguments(c_, in, SegmentList({s}, {}), plain, out));
        s = {s.row + 1, 1, s.position + 1, s.state_slot, anchor_after_decode(s)};
      }
      with_drafts(k, in, drafted, out);
    }
  }

 private:
  static constexpr int32_t kTokens = 70, kDrafts = SlotCache::kDrafts;

  void with_drafts(const Tested<GatedDeltaArgs>& k, const Inputs& in, SlotCache& cache, const Buffer& want) {
    const Segment& all = in.segments[0];
    Segment s{all.row, 1, position_, all.state_slot, anchor_};
    Rng rng = s_.rng_for_case(c_.name + " drafts");
    const int32_t rows = kDrafts + 1;
    for (int32_t t = 0; t < kTokens;) {
      const int32_t good = std::min(1 + rng.integer(0, kDrafts), kTokens - t);
      std::vector<int32_t> from;
      for (int32_t i = 0; i < rows; ++i) from.push_back(all.row + t + i + (i < good ? 0 : kTokens));
      for (int32_t& row : from) row = std::min(row, all.row + all.count - 1);
      const Inputs step{rows,
                        in.slots,
                        in.q.gather(from),
                        in.k.gather(from),
                        in.v.gather(from),
                        in.g.gather(from),
                        in.beta.gather(from),
                        in.cache,
                        {}};
      s.row = 0;
      s.count = rows;
      s.tentative = kDrafts;
      Buffer out(c_.type, {rows, c_.Hv, c_.Dv});
      k.launch(s_.context(Device::kCpu), arguments(c_, step, SegmentList({s}, {}), cache, out));
      s_.expect_same_bits(k.name, fmt::format("{}, {} of {} drafts kept at {}", c_.name, good - 1, kDrafts, s.position),
                          out.tensor().rows(0, good), want.tensor().rows(all.row + t, good));
      s.anchor = anchor_after_decode(s);
      s.position += good;
      t += good;
    }
  }

  Suite& s_;
  const Case& c_;
  int32_t anchor_, position_;
  Rng rng_;
};

}  // namespace

void gdn_recurrent_conformance(Suite& s) {
  std::vector<Case> cases = common_cases({{1, 5, true},          // between two folds
                                          {3, 0, true},          // from nothing
                                          {1, 31, true},         // the fold
                                          {7, 77, true},         // through it
                                          {2, 83, true, 70},     // after a prompt and the first fold's place
                                          {4, 74, true, 70, 3},  // drafts after a prompt
                                          {4, 30, true, 16, 3},  // drafts across the boundary
                                          {4, 34, true, 16, 3},  // accepted drafts have crossed it
                                          {1, 35, true, 16},     // as many pending tokens as there are at most
                                          {2, 18, true, 0},      // the same, from nothing
                                          {0, 40, true},
                                          {130, 0, false},
                                          {70, 192, false}});
  std::vector<Piece> phases;
  for (int32_t i = 0; i < kPendingTokens; ++i) {
    phases.push_back({1, 48 + i, true});
    phases.push_back({1, i, true});
    phases.push_back({4, 48 + i, true, -1, 3});
    if (i < 10) phases.push_back({1 + i % 3, 70 + i, true, 70});
  }
  cases.push_back({.name = "all phases", .pieces = phases});
  cases.push_back({.name = "all phases, float32", .type = DType::kF32, .pieces = phases});
  for (const int32_t n : {1, 2, 5, 17, 33, 200}) {
    cases.push_back({.name = fmt::format("{} tokens, fresh", n), .pieces = {{n, 0, true}}});
    cases.push_back({.name = fmt::format("{} tokens, later", n), .pieces = {{n, 64, true}}});
    cases.push_back({.name = fmt::format("{} tokens, after a prompt", n), .pieces = {{n, 70, true, 70}}});
  }
  std::vector<Piece> many(33, {1, 9, true});
  many.push_back({64, 64, false});
  cases.push_back({.name = "33 decode rows", .pieces = many});
  for (const Case& c : cases) Recurrent(s, c).check();

  const Case rollbacks[] = {{.name = "rollback"},
                            {.name = "rollback, Dk=24 Dv=7", .Dk = 24, .Dv = 7},
                            {.name = "rollback, float32", .Dk = 128, .Dv = 128, .type = DType::kF32}};
  for (const Case& c : rollbacks) {
    Rollback(s, c, 0, 0).check();
    Rollback(s, c, 70, 70).check();
    Rollback(s, c, 16, 34).check();
  }
}

}  // namespace quire::conformance
