// What the suites of the two forms of the delta rule share: cases, inputs, and the oracle, which follows the
// error along with the value.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ops/conformance/conformance.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire::conformance::delta {

struct Piece {
  int32_t count, position;
  bool decode;
  int32_t anchor = -1;  // of a decode piece; -1: its position rounded down to a multiple of kPendingTokens
  int32_t tentative = 0;
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

  int64_t key_head(int64_t hv) const { return heads == HeadMap::kTiled ? hv % Hk : hv / (Hv / Hk); }
};
// Sizes, head maps, types, decays, betas and keys; each with these pieces.
std::vector<Case> common_cases(const std::vector<Piece>& pieces);

// Slots as storage keeps them: all of a slot in one row of memory, with gaps between the parts. Starts as
// NaN.
class SlotCache {
 public:
  static constexpr int64_t kDrafts = 3, kPending = kPendingTokens + kDrafts;

  SlotCache(const Case& c, int64_t slots);
  DeltaState views() const;
  void copy_slot(int64_t slot, SlotCache& to, int64_t to_slot) const;
  // Whether the gaps of all slots are as they were made.
  bool gaps_intact() const;
  const Buffer& memory() const { return memory_; }

 private:
  static constexpr int64_t kGap = 16;
  struct Part {
    DType dtype;
    int64_t shape[3];
    int64_t floats() const { return shape[0] * shape[1] * shape[2] / (dtype == DType::kF32 ? 1 : 2); }
  };
  Part parts_[4];  // state, pending_k, pending_u, pending_g
  Buffer memory_;  // f32 [slots, floats of a slot]
};

// Inputs of a case. Rows between segments, slots that no segment owns, and what nobody may read in the others
// are NaN.
struct Inputs {
  int64_t rows, slots;
  Buffer q, k, v, g, beta;
  SlotCache cache;
  SegmentList segments;

  SegmentArray kind(bool decode) const {
    const SegmentArray all = segments;
    return decode ? all.decoding() : all.prompts();
  }
};
Inputs make_inputs(const Case& c, Rng& rng);
GatedDeltaArgs arguments(const Case& c, const Inputs& in, const SegmentArray& segments, const SlotCache& cache,
                         const Buffer& out);

// The plain recurrence in float64 over the segments of one kind, and how sensitive its results are to
// rounding. (I - beta k k^T) never lengthens a column's error (|k| = 1, beta in [0, 1]), the decay shortens
// it; a step adds `unit` times the magnitudes that it adds up. Steps round independently, so their errors are
// added in squares; four sigmas leave room for the unlucky one.
//   |out - want| <= eps_out |want| + unit * out_error;  |x - want| <= unit * x_error
// NaN where nothing is written. A decode segment's state is the one after anchor_after_decode() tokens.
struct Expected {
  std::vector<double> out, out_error;      // [rows, Hv, Dv]
  std::vector<double> state, state_error;  // [slots, Hv, Dv, Dk]
  std::vector<double> u, u_error;          // [slots, W, Hv, Dv]
};
Expected oracle(const Case& c, const Inputs& in, bool decode);

// The error of float32 kernels: a dot product of Dk terms in at least 8 accumulators, three such per step;
// tiles of a chunked form add up to 64 rows more, pending tokens up to 16.
double unit_f32(const Case& c);

// The part of `got` that the oracle speaks about, against it; what it does not speak about must be untouched.
void expect_values(Suite& s, std::string_view kernel, const std::string& name, const Tensor& got,
                   const Tensor& untouched, const std::vector<double>& want, const std::vector<double>& error,
                   double relative, double unit);

// What is checked of either form: every kernel of `op` against the oracle, on one thread, and each segment by itself in
// another slot. A form adds what it promises beyond that.
class FormCase {
 public:
  FormCase(Suite& s, const Case& c, const Operator<GatedDeltaArgs>& op, bool decode);
  virtual ~FormCase() = default;
  FormCase(const FormCase&) = delete;
  FormCase& operator=(const FormCase&) = delete;
  void check();

 protected:
  // After the kernel under test has run all segments.
  virtual void check_more(const Expected& want, const Buffer& out, const SlotCache& cache) = 0;
  // What slot_a of a holds after `seg` is what slot_b of b holds after `other`; the segments end alike.
  virtual void expect_same_slot(const std::string& what, const Segment& seg, const Segment& other, const SlotCache& a,
                                int64_t slot_a, const SlotCache& b, int64_t slot_b) = 0;
  // The error of one step, in the kernel under test.
  virtual double unit() const { return unit_f32(c_); }

  std::string_view kernel() const { return kernel_->name; }
  SegmentArray segments() const { return in_.kind(decode_); }
  Buffer new_out() const { return Buffer(c_.type, {in_.rows, c_.Hv, c_.Dv}); }
  // `threads` of 0: as the options say.
  void run(const SegmentArray& segments, const SlotCache& cache, const Buffer& out, int threads = 0);

  Suite& s_;
  const Case& c_;

 private:
  void check_alone(const Buffer& out, const SlotCache& cache);

  const Operator<GatedDeltaArgs>& op_;
  const bool decode_;
  Rng rng_;
  const Tested<GatedDeltaArgs>* kernel_ = nullptr;

 protected:
  const Inputs in_;
};

}  // namespace quire::conformance::delta
