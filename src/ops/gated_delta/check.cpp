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

void expect_f32(std::string_view name, const Tensor& t) {
  QUIRE_CHECK(t.dtype == DType::kF32, "{}: is {}, but f32 is required", name, dtype_name(t.dtype));
}

void check_segment(const Segment& s, int64_t rows, int64_t slots) {
  QUIRE_CHECK(s.row >= 0 && s.count >= 0 && s.position >= 0 && int64_t{s.row} + s.count <= rows,
              "segment: rows [{}, +{}) of {} at position {}", s.row, s.count, rows, s.position);
  QUIRE_CHECK(s.state_slot >= 0 && s.state_slot < slots, "segment: state slot {} of {}", s.state_slot, slots);
}

void check_token_slots(std::span<const int32_t> token_slots, int64_t rows, int64_t slots) {
  if (token_slots.empty()) return;
  QUIRE_CHECK(static_cast<int64_t>(token_slots.size()) == rows, "token_slots: {} for {} rows",
              token_slots.size(), rows);
  for (const int32_t s : token_slots) QUIRE_CHECK(s >= -1 && s < slots, "token_slots: {} of {}", s, slots);
}

}  // namespace

PrepareSizes check(const GdnPrepareArgs& a) {
  Dim T{"T"}, C{"C"}, Kc{"Kc"}, Hk{"Hk"}, Dk{"Dk"}, Hv{"Hv"}, Dv{"Dv"}, slots{"slots"};
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
  expect_shape("conv", a.cache.conv, slots, int64_t{Kc - 1}, C);
  QUIRE_CHECK(C == 2 * Hk * Dk + Hv * Dv, "qkv: C is {}, but 2 Hk Dk + Hv Dv = {}", C.value,
              2 * Hk * Dk + Hv * Dv);
  for (const auto& [name, t] : {std::pair<const char*, const Tensor&>{"q", a.q}, {"k", a.k}, {"v", a.v}}) {
    expect_packed_heads(name, t);
    QUIRE_CHECK(t.dtype == a.qkv.dtype, "{}: must have the type of qkv", name);
  }
  for (const auto& [name, t] : {std::pair<const char*, const Tensor&>{"conv_weight", a.conv_weight},
                                {"ssm_a", a.ssm_a},
                                {"dt_bias", a.dt_bias},
                                {"conv", a.cache.conv}}) {
    expect_f32(name, t);
    expect_contiguous(name, t);
  }
  expect_f32("g", a.g);
  expect_f32("beta", a.beta);
  for (const Segment& s : a.segments) check_segment(s, T, slots);
  check_token_slots(a.token_slots, T, slots);
  return {T, C, Kc, Hk, Dk, Hv, Dv, slots};
}

DeltaSizes check(const GatedDeltaArgs& a, bool decode) {
  Dim T{"T"}, Hk{"Hk"}, Dk{"Dk"}, Hv{"Hv"}, Dv{"Dv"}, slots{"slots"};
  expect_shape("q", a.q, T, Hk, Dk);
  expect_shape("k", a.k, T, Hk, Dk);
  expect_shape("v", a.v, T, Hv, Dv);
  expect_shape("out", a.out, T, Hv, Dv);
  expect_shape("g", a.g, T, Hv);
  expect_shape("beta", a.beta, T, Hv);
  expect_shape("state", a.state, slots, Hv, Dv, Dk);
  QUIRE_CHECK(Hk > 0 && Hv % Hk == 0, "v: Hv = {} is no multiple of Hk = {}", Hv.value, Hk.value);
  for (const auto& [name, t] :
       {std::pair<const char*, const Tensor&>{"q", a.q}, {"k", a.k}, {"v", a.v}, {"out", a.out}}) {
    expect_packed_heads(name, t);
    QUIRE_CHECK(t.dtype == a.q.dtype, "{}: must have the type of q", name);
  }
  expect_f32("g", a.g);
  expect_f32("beta", a.beta);
  expect_f32("state", a.state);
  expect_contiguous("state", a.state);
  for (const Segment& s : a.segments) {
    if (s.decode != decode) continue;
    check_segment(s, T, slots);
    QUIRE_CHECK(decode || s.position % kChunkTokens == 0,
                "segment: a prompt chunk begins at position {}, not on the grid of {}", s.position,
                kChunkTokens);
  }
  if (decode) check_token_slots(a.token_slots, T, slots);
  return {T, Hk, Dk, Hv, Dv, slots};
}

}  // namespace quire::gdn
