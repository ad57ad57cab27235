// Dense projections: y = scale * W x (+ bias) (+ y), several matrices over one input in one region.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "ops/gemm/token_rounding.h"
#include "ops/op.h"

namespace quire {

// x     [T, K]   bf16 (CPU kernels) or f32 (reference); the row stride may exceed K
// parts: for each
//   w    [N, K]  any decodable type; K as in x
//   bias [N]     f32, optional (empty tensor)
//   y    [T, N]  bf16 or f32; must not alias x
//   add_to_y     y += result instead of y = result (the residual epilogue; y is then f32). A device that holds some
//                columns of W writes its partial result into a f32 y without adding; reduce_partials adds them up
// The sum over K is in float32 (kernels) or float64 (reference). CPU kernels decode weights to bf16 (float32 for F32
// and F16 weights), so a weight is rounded once to 8 bits of mantissa unless its format is exact in bf16 (BF16, MXFP4,
// NVFP4); with AMX, Q8_0, Q4_0, Q5_0 and Q6_K pass through the 11 bits of a half before that. The integer kernels round
// the tokens instead (`latency_rows`; without AVX-512 for all rows of block formats). The weight's scale multiplies the
// finished sum, before bias. Row r of y depends on row r of x alone, bit for bit. T = 0 is legal. Bound: for small T
// the bytes of W (read once); for large T 2 T N K operations.
struct LinearPart {
  Weight w;
  Tensor bias;
  Tensor y;
  bool add_to_y = false;
};

// Up to kMost parts, by value: arguments of a step hold no memory of the host.
class LinearParts {
 public:
  static constexpr size_t kMost = 8;
  LinearParts() = default;
  LinearParts(std::initializer_list<LinearPart> parts) : LinearParts(std::span(parts.begin(), parts.size())) {}
  LinearParts(std::span<const LinearPart> parts) : size_(parts.size()) {  // NOLINT(google-explicit-constructor)
    QUIRE_CHECK(size_ <= kMost, "linear: {} parts, at most {} are possible", size_, kMost);
    std::copy(parts.begin(), parts.end(), parts_.begin());
  }
  template <size_t N>
  LinearParts(const LinearPart (&parts)[N]) : LinearParts(std::span<const LinearPart>(parts)) {}  // NOLINT
  size_t size() const { return size_; }
  const LinearPart& operator[](size_t i) const { return parts_[i]; }
  const LinearPart* begin() const { return parts_.data(); }
  const LinearPart* end() const { return parts_.data() + size_; }
  LinearPart* begin() { return parts_.data(); }
  LinearPart* end() { return parts_.data() + size_; }

 private:
  std::array<LinearPart, kMost> parts_;
  size_t size_ = 0;
};

struct LinearArgs {
  Tensor x;
  LinearParts parts;
  // The first rows, computed in the arithmetic for latency: the integer kernel may take them, which rounds the tokens
  // instead of the weights, or the vector kernel, with BF16 weights (docs/numerics.md). The bits of a row differ with
  // this, and with nothing else. A kernel sees all rows of a call or none of them as such: linear() calls it twice.
  int64_t latency_rows = 0;
  // The last rows, which are rounded before weights of the types that this is for are multiplied with them. The bits of
  // a row differ with this likewise, and linear() splits calls by it. A GPU's kernels and the reference do so, and no
  // kernel of a CPU.
  RoundedTokens rounded;

  bool for_latency() const { return latency_rows > 0; }
  LinearArgs rows(int64_t begin, int64_t count) const;
};

void linear(const OpContext& ctx, const LinearArgs& a);
extern const Operator<LinearArgs> kLinearOp;

}  // namespace quire
