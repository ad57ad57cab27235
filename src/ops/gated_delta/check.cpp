#include "ops/gated_delta/check.h"

namespace quire::gdn {
namespace {

// Heads of a row lie one after the other; rows may be apart (columns of a wider matrix).
void expect_packed_heads(std::string_view name, const Tensor& t) {
  QUIRE_CHECK(t.stride[1] == t.dim(2) && t.stride[2] == 1, "{}: heads must be contiguous within a row", name);
}

void expect_contiguous(std::string_view name, const Tensor& t) {
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    QUIRE_CHECK(t.stride[static_cast<size_t>(i)] == stride, "{}: must be contiguous", name);
    stride *= t.dim(i);
  }
}

// Slots may be apart.
void expect_packed_slots(std::string_view name, const Tensor& t) {
  int64_t stride = 1;
  for (int i = t.rank - 1; i > 0; --i) {
    QUIRE_CHECK(t.stride[static_cast<size_t>(i)] == stride, "{}: must be contiguous within a slot", name);
    stride *= t.dim(i);
  }
  QUIRE_CHECK(t.stride[0] >= stride, "{}: slots overlap", name);
}

void expect_f32(std::string_view name, const Tensor& t) {
  QUIRE_CHECK(t.dtype == DType::kF32, "{}: is {}, but f32 is required", name, dtype_name(t.dtype));
}

void check_segment(const Segment& s, int64_t rows, int64_t slots) {
  if (s.count == 0) return;
  QUIRE_CHECK(s.row >= 0 && s.count >= 0 && s.position >= 0 && int64_t{s.row} + s.count <= rows,
              "segment: rows [{}, +{}) of {} at position {}", s.row, s.count, rows, s.position);
  QUIRE_CHECK(s.state_slot >= 0 && s.state_slot < slots, "segment: state slot {} of {}", s.state_slot, slots);
}

// There is memory for every token since the anchor, before the segment and after it.
void check_pending(const Segment& s, int64_t W) {
  if (s.count == 0) return;
  QUIRE_CHECK(s.tentative >= 0 && s.tentative <= s.count, "segment: {} tentative rows of {}", s.tentative, s.count);
  QUIRE_CHECK(
      s.anchor >= 0 && s.anchor <= s.position && s.position - s.anchor <= W &&
          s.position + s.count - anchor_after_decode(s) <= W,
      "segment: {} rows, {} of them tentative, at position {} and a state after {} do not fit {} pending tokens",
      s.count, s.tentative, s.position, s.anchor, W);
}

}  // namespace

PrepareSizes check(const GdnPrepareArgs& a) {
  Dim T{"T"}, C{"C"}, Kc{"Kc"}, R{"R"}, Hk{"Hk"}, Dk{"Dk"}, Hv{"Hv"}, Dv{"Dv"}, slots{"slots"};
  expect_shape("qkv", a.qkv, T, C);
  expect_shape("q", a.q, T, Hk, Dk);
  expect_shape("k", a.k, T, Hk, Dk);
  expect_shape("v", a.v, T, Hv, Dv);
  expect_shape("a", a.a, T, Hv);
  expect_shape("b", a.b, T, Hv);
  expect_shape("g", a.g, T, Hv);
  expect_shape("beta", a.beta, T, Hv);
  expect_shape("conv_weight", a.conv_weight, C, Kc);
  expect_shape("ssm_a", a.ssm_a, Hv);
  expect_shape("dt_bias", a.dt_bias, Hv);
  expect_shape("conv", a.cache.conv, slots, R, C);
  QUIRE_CHECK(Kc > 0 && R > 0 && (R & (R - 1)) == 0, "conv: R is {}, no power of two", R.value);
  QUIRE_CHECK(C == 2 * Hk * Dk + Hv * Dv, "qkv: C is {}, but 2 Hk Dk + Hv Dv = {}", C.value, 2 * Hk * Dk + Hv * Dv);
  for (const auto& [name, t] : {std::pair<const char*, const Tensor&>{"q", a.q}, {"k", a.k}, {"v", a.v}}) {
    expect_packed_heads(name, t);
    QUIRE_CHECK(t.dtype == a.qkv.dtype, "{}: must have the type of qkv", name);
  }
  for (const auto& [name, t] : {std::pair<const char*, const Tensor&>{"conv_weight", a.conv_weight},
                                {"ssm_a", a.ssm_a},
                                {"dt_bias", a.dt_bias}}) {
    expect_f32(name, t);
    expect_contiguous(name, t);
  }
  QUIRE_CHECK(a.cache.conv.dtype == a.qkv.dtype, "conv: must have the type of qkv");
  expect_packed_slots("conv", a.cache.conv);
  expect_f32("g", a.g);
  expect_f32("beta", a.beta);
  for (const Segment& s : a.segments) {
    check_segment(s, T, slots);
    QUIRE_CHECK(s.count == 0 || s.tentative + Kc - 1 <= R,
                "segment: {} tentative rows and {} before them do not fit a ring of {}", s.tentative, Kc - 1, R.value);
  }
  return {T, C, Kc, R, Hk, Dk, Hv, Dv, slots};
}

DeltaSizes check(const GatedDeltaArgs& a, bool decode) {
  Dim T{"T"}, Hk{"Hk"}, Dk{"Dk"}, Hv{"Hv"}, Dv{"Dv"}, slots{"slots"}, W{"W", 0};
  expect_shape("q", a.q, T, Hk, Dk);
  expect_shape("k", a.k, T, Hk, Dk);
  expect_shape("v", a.v, T, Hv, Dv);
  expect_shape("out", a.out, T, Hv, Dv);
  expect_shape("g", a.g, T, Hv);
  expect_shape("beta", a.beta, T, Hv);
  expect_shape("state", a.cache.state, slots, Hv, Dv, Dk);
  QUIRE_CHECK(Hk > 0 && Hv % Hk == 0, "v: Hv = {} is no multiple of Hk = {}", Hv.value, Hk.value);
  for (const auto& [name, t] :
       {std::pair<const char*, const Tensor&>{"q", a.q}, {"k", a.k}, {"v", a.v}, {"out", a.out}}) {
    expect_packed_heads(name, t);
    QUIRE_CHECK(t.dtype == a.q.dtype, "{}: must have the type of q", name);
  }
  expect_f32("g", a.g);
  expect_f32("beta", a.beta);
  expect_f32("state", a.cache.state);
  expect_packed_slots("state", a.cache.state);
  if (decode) {
    W.value = -1;
    expect_shape("pending_k", a.cache.pending_k, slots, W, Hk, Dk);
    expect_shape("pending_u", a.cache.pending_u, slots, W, Hv, Dv);
    expect_shape("pending_g", a.cache.pending_g, slots, W, Hv);
    QUIRE_CHECK(W >= kPendingTokens, "pending_k: W is {}, less than {}", W.value, kPendingTokens);
    QUIRE_CHECK(a.cache.pending_k.dtype == a.k.dtype, "pending_k: must have the type of k");
    expect_f32("pending_u", a.cache.pending_u);
    expect_f32("pending_g", a.cache.pending_g);
    expect_packed_slots("pending_k", a.cache.pending_k);
    expect_packed_slots("pending_u", a.cache.pending_u);
    expect_packed_slots("pending_g", a.cache.pending_g);
  }
  for (const Segment& s : decode ? a.segments.decoding() : a.segments.prompts()) {
    check_segment(s, T, slots);
    if (decode) {
      check_pending(s, W);
    } else {
      QUIRE_CHECK(s.count == 0 || (s.position % kChunkTokens == 0 && s.anchor == s.position),
                  "segment: a prompt chunk begins at position {}, not on the grid of {}, or not at its anchor {}",
                  s.position, kChunkTokens, s.anchor);
    }
  }
  return {T, Hk, Dk, Hv, Dv, slots, W};
}

}  // namespace quire::gdn
