#include "ops/gated_delta/launch.h"

#include <algorithm>
#include <cstring>

namespace quire::gdn {

PrepareWork prepare_work(const GdnPrepareArgs& a, const PrepareSizes& n) {
  return {.segments = a.segments.data,
          .bf16 = a.qkv.dtype == DType::kBF16,
          .qkv = a.qkv.data,
          .a = a.a.data,
          .b = a.b.data,
          .a_bf16 = a.a.dtype == DType::kBF16,
          .b_bf16 = a.b.dtype == DType::kBF16,
          .conv_weight = a.conv_weight.as<float>(),
          .ssm_a = a.ssm_a.as<float>(),
          .dt_bias = a.dt_bias.as<float>(),
          .conv = a.cache.conv.data,
          .q = a.q.data,
          .k = a.k.data,
          .v = a.v.data,
          .g = a.g.as<float>(),
          .beta = a.beta.as<float>(),
          .qkv_stride = a.qkv.stride[0],
          .a_stride = a.a.stride[0],
          .b_stride = a.b.stride[0],
          .q_stride = a.q.stride[0],
          .k_stride = a.k.stride[0],
          .v_stride = a.v.stride[0],
          .g_stride = a.g.stride[0],
          .beta_stride = a.beta.stride[0],
          .conv_slot_stride = a.cache.conv.stride[0],
          .C = n.C,
          .Kc = n.Kc,
          .R = n.R,
          .Hk = n.Hk,
          .Dk = n.Dk,
          .Hv = n.Hv,
          .Dv = n.Dv};
}

DeltaWork delta_work(const GatedDeltaArgs& a, const DeltaSizes& n, const SegmentArray& segments) {
  return {.segments = segments.data,
          .bf16 = a.q.dtype == DType::kBF16,
          .tiled = a.heads == HeadMap::kTiled,
          .q = a.q.data,
          .k = a.k.data,
          .v = a.v.data,
          .g = a.g.as<float>(),
          .beta = a.beta.as<float>(),
          .state = a.cache.state.as<float>(),
          .out = a.out.data,
          .pending_k = a.cache.pending_k.data,
          .pending_u = static_cast<float*>(a.cache.pending_u.data),
          .pending_g = static_cast<float*>(a.cache.pending_g.data),
          .q_stride = a.q.stride[0],
          .k_stride = a.k.stride[0],
          .v_stride = a.v.stride[0],
          .g_stride = a.g.stride[0],
          .beta_stride = a.beta.stride[0],
          .out_stride = a.out.stride[0],
          .state_slot_stride = a.cache.state.stride[0],
          .pending_k_slot_stride = a.cache.pending_k.stride[0],
          .pending_u_slot_stride = a.cache.pending_u.stride[0],
          .pending_g_slot_stride = a.cache.pending_g.stride[0],
          .Hk = n.Hk,
          .Dk = n.Dk,
          .Hv = n.Hv,
          .Dv = n.Dv};
}

void append_pending(const DeltaWork& w, const Segment& s) {
  if (s.count == 0) return;
  const int32_t anchor = anchor_after_decode(s), end = s.position + s.count;
  const int64_t key = w.Hk * w.Dk * (w.bf16 ? 2 : 4), decay = w.Hv * int64_t{sizeof(float)};
  auto* keys = static_cast<std::byte*>(w.pending_k) + s.state_slot * w.pending_k_slot_stride * (w.bf16 ? 2 : 4);
  auto* decays = reinterpret_cast<std::byte*>(w.pending_g + s.state_slot * w.pending_g_slot_stride);
  if (anchor > s.anchor && anchor < s.position) {
    const int32_t first = anchor - s.anchor, kept = s.position - anchor;
    std::memmove(keys, keys + first * key, static_cast<size_t>(kept * key));
    std::memmove(decays, decays + first * decay, static_cast<size_t>(kept * decay));
  }
  for (int32_t t = std::max(anchor, s.position); t < end; ++t) {
    const int64_t row = s.row + (t - s.position);
    std::memcpy(keys + (t - anchor) * key, static_cast<const std::byte*>(w.k) + row * w.k_stride * (w.bf16 ? 2 : 4),
                static_cast<size_t>(key));
    std::memcpy(decays + (t - anchor) * decay, w.g + row * w.g_stride, static_cast<size_t>(decay));
  }
}

bool prepare_fits(const GdnPrepareArgs& a) {
  return a.q.dim(2) <= kMaxHeadDim && a.v.dim(2) <= kMaxHeadDim && a.conv_weight.dim(1) <= kMaxTaps;
}

bool recurrent_fits(const GatedDeltaArgs& a, int64_t width) {
  return a.q.dim(2) <= kMaxHeadDim && a.q.dim(2) % width == 0;
}

bool chunked_fits(const GatedDeltaArgs& a, int64_t width) {
  return a.q.dim(2) % width == 0 && a.v.dim(2) % width == 0;
}

int64_t chunked_scratch_f32(int64_t Dk, int64_t Dv, int64_t heads) {
  const int64_t floats = kChunkTokens * (3 * Dk + 2 * Dv) + 4 * kChunkTokens * kChunkTokens + heads * Dk * Dv;
  return floats * static_cast<int64_t>(sizeof(float));
}

int64_t columns_per_unit(int64_t heads, int64_t Dv, int threads) {
  constexpr int64_t kFew = 32;
  return heads >= int64_t{4} * threads ? Dv : std::min(Dv, kFew);
}

int64_t value_heads_per_unit(int64_t units, int64_t r, int threads) {
  return units >= int64_t{2} * threads ? r : 1;
}

}  // namespace quire::gdn
