// Cases of the chunked form. Every kernel, the reference included, answers to the recurrence in float64.
#include "ops/gated_delta/test_delta.h"

namespace quire::conformance {
namespace {

using namespace delta;

class Chunked : public FormCase {
 public:
  Chunked(Suite& s, const Case& c) : FormCase(s, c, kGdnChunkedOp, false) {}

 private:
  // AMX rounds the factors of every product to bf16, whose typical error is a quarter of the worst.
  double unit() const override { return kernel() == "amx" ? 0.25 * kEpsBf16 : FormCase::unit(); }

  void expect_same_slot(const std::string& what, const Segment&, const Segment& other, const SlotCache& a,
                        int64_t slot_a, const SlotCache& b, int64_t slot_b) override {
    s_.expect_same_bits(kernel(), fmt::format("{}, {}, row {}, state", c_.name, what, other.row),
                        a.views().state.rows(slot_a, 1), b.views().state.rows(slot_b, 1));
  }

  // Prompts cut on the grid of 64: the state goes from piece to piece.
  void check_more(const Expected&, const Buffer& out, const SlotCache& cache) override {
    const Buffer out1 = new_out();
    const SlotCache cache1 = in_.cache;
    int32_t longest = 0;
    for (const Segment& seg : segments()) longest = std::max(longest, seg.count);
    for (int32_t t = 0; t < longest; t += kChunkTokens) {
      SegmentList pieces;
      for (Segment seg : segments()) {
        if (t >= seg.count) continue;
        seg.row += t;
        seg.position += t;
        seg.anchor = seg.position;
        seg.count = std::min(kChunkTokens, seg.count - t);
        pieces.add(seg);
      }
      run(pieces, cache1, out1);
    }
    s_.expect_same_bits(kernel(), c_.name + ", in pieces", out1, out);
    s_.expect_same_bits(kernel(), c_.name + ", in pieces, state", cache1.memory(), cache.memory());
  }
};

}  // namespace

void gdn_chunked_conformance(Suite& s) {
  std::vector<Case> cases = common_cases(
      {{1, 5, true}, {3, 0, true}, {7, 77, true}, {130, 0, false}, {70, 192, false}, {0, 64, false}, {1, 0, false}});
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
