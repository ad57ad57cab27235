// Cases of the chunked form. Every kernel, the reference included, answers to the recurrence in float64.
#include "ops/gated_delta/test_delta.h"

namespace quire::conformance {
namespace {

using namespace delta;

class Chunked {
 public:
  Chunked(Suite& s, const Case& c) : s_(s), c_(c), rng_(s.rng_for_case(c.name)), in_(make_inputs(c, rng_)) {}

  void check() {
    const Expected want = oracle(c_, in_, false);
    for (const auto& k : s_.kernels(kGdnChunkedOp.kernels)) {
      Buffer out(c_.type, {in_.rows, c_.Hv, c_.Dv});
      SlotCache cache = in_.cache;
      const Buffer untouched = out;
      if (!s_.wants(k.name, c_.name) || !k.fits(s_.machine(), arguments(c_, in_, in_.segments, cache, out)))
        continue;
      kernel_ = &k;
      run(in_.segments, cache, out);
      // AMX rounds the factors of every product to bf16, whose typical error is a quarter of the worst.
      const double unit = k.name == "amx" ? 0.25 * kEpsBf16 : unit_f32(c_);
      expect_values(s_, k.name, c_.name, out, untouched, want.out, want.out_error,
                    c_.type == DType::kBF16 ? kEpsBf16 : kEpsF32, unit);
      expect_values(s_, k.name, c_.name, cache.views().state, in_.cache.views().state, want.state,
                    want.state_error, kEpsF32, unit);
      s_.expect(k.name, c_.name, cache.gaps_intact(), "memory between the parts of a slot is left alone");
      s_.expect_guards(k.name, c_.name, {&out, &cache.memory(), &in_.q, &in_.k, &in_.v, &in_.g, &in_.beta});

      Buffer out1(c_.type, {in_.rows, c_.Hv, c_.Dv});
      SlotCache cache1 = in_.cache;
      kernel_->launch(s_.context(Device::kCpu, 1), arguments(c_, in_, in_.segments, cache1, out1));
      s_.expect_same_bits(k.name, c_.name + ", one thread", out1, out);
      s_.expect_same_bits(k.name, c_.name + ", one thread, state", cache1.memory(), cache.memory());

      alone(out, cache);
      in_pieces(out, cache);
    }
  }

 private:
  void run(const SegmentArray& segments, SlotCache& cache, Buffer& out) {
    kernel_->launch(s_.context(Device::kCpu), arguments(c_, in_, segments, cache, out));
  }

  // Each segment by itself, in another slot.
  void alone(const Buffer& out, const SlotCache& cache) {
    for (const Segment& seg : in_.kind(false)) {
      Segment other = seg;
      other.state_slot = static_cast<int32_t>((seg.state_slot + 1) % in_.slots);
      Buffer out1(c_.type, {in_.rows, c_.Hv, c_.Dv});
      SlotCache cache1 = in_.cache;
      in_.cache.copy_slot(seg.state_slot, cache1, other.state_slot);
      run(SegmentList({}, {other}), cache1, out1);
      const std::string name = fmt::format("{}, segment at row {} alone", c_.name, seg.row);
      s_.expect_same_bits(kernel_->name, name, out1.tensor().rows(seg.row, seg.count),
                          out.tensor().rows(seg.row, seg.count));
      s_.expect_same_bits(kernel_->name, name + ", state", cache1.views().state.rows(other.state_slot, 1),
                          cache.views().state.rows(seg.state_slot, 1));
    }
  }

  // Prompts cut on the grid of 64: the state goes from piece to piece.
  void in_pieces(const Buffer& out, const SlotCache& cache) {
    Buffer out1(c_.type, {in_.rows, c_.Hv, c_.Dv});
    SlotCache cache1 = in_.cache;
    int32_t longest = 0;
    for (const Segment& seg : in_.kind(false)) longest = std::max(longest, seg.count);
    for (int32_t t = 0; t < longest; t += kChunkTokens) {
      SegmentList pieces;
      for (Segment seg : in_.kind(false)) {
        if (t >= seg.count) continue;
        seg.row += t;
        seg.position += t;
        seg.anchor = seg.position;
        seg.count = std::min(kChunkTokens, seg.count - t);
        pieces.add(seg);
      }
      run(pieces, cache1, out1);
    }
    s_.expect_same_bits(kernel_->name, c_.name + ", in pieces", out1, out);
    s_.expect_same_bits(kernel_->name, c_.name + ", in pieces, state", cache1.memory(), cache.memory());
  }

  Suite& s_;
  const Case& c_;
  Rng rng_;
  Inputs in_;
  const Kernel<GatedDeltaArgs>* kernel_ = nullptr;
};

}  // namespace

void gdn_chunked_conformance(Suite& s) {
  std::vector<Case> cases = common_cases({{1, 5, true},
                                          {3, 0, true},
                                          {7, 77, true},
                                          {130, 0, false},
                                          {70, 192, false},
                                          {0, 64, false},
                                          {1, 0, false}});
  for (const int32_t n : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    cases.push_back({.name = fmt::format("{} tokens, fresh", n), .pieces = {{n, 0, false}}});
    cases.push_back({.name = fmt::format("{} tokens, later", n), .pieces = {{n, 64, false}}});
  }
  std::vector<Piece> many(33, {1, 9, true});
  many.push_back({64, 64, false});
  cases.push_back({.name = "33 decode rows", .pieces = many});
  for (const Case& c : cases) Chunked(s, c).check();
}

}  // namespace quire::conformance
