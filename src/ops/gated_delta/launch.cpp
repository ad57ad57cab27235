#include "ops/gated_delta/launch.h"

namespace quire::gdn {

PrepareWork prepare_work(const GdnPrepareArgs& a, const PrepareSizes& n) {
  return {.segments = a.segments.data(),
          .token_slots = a.token_slots.empty() ? nullptr : a.token_slots.data(),
          .bf16 = a.qkv.dtype == DType::kBF16,
          .qkv = a.qkv.data,
          .a = a.a.data,
          .b = a.b.data,
          .a_bf16 = a.a.dtype == DType::kBF16,
          .b_bf16 = a.b.dtype == DType::kBF16,
          .conv_weight = a.conv_weight.as<float>(),
          .ssm_a = a.ssm_a.as<float>(),
          .dt_bias = a.dt_bias.as<float>(),
          .conv = a.cache.conv.as<float>(),
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
          .C = n.C,
          .Kc = n.Kc,
          .Hk = n.Hk,
          .Dk = n.Dk,
          .Hv = n.Hv,
          .Dv = n.Dv};
}

DeltaWork delta_work(const GatedDeltaArgs& a, const DeltaSizes& n, bool decode, int32_t* chosen,
                     int64_t& count) {
  count = 0;
  for (size_t i = 0; i < a.segments.size(); ++i)
    if (a.segments[i].decode == decode && a.segments[i].count > 0) chosen[count++] = static_cast<int32_t>(i);
  return {.segments = a.segments.data(),
          .chosen = chosen,
          .token_slots = !decode || a.token_slots.empty() ? nullptr : a.token_slots.data(),
          .bf16 = a.q.dtype == DType::kBF16,
          .tiled = a.heads == HeadMap::kTiled,
          .q = a.q.data,
          .k = a.k.data,
          .v = a.v.data,
          .g = a.g.as<float>(),
          .beta = a.beta.as<float>(),
          .state = a.state.as<float>(),
          .out = a.out.data,
          .q_stride = a.q.stride[0],
          .k_stride = a.k.stride[0],
          .v_stride = a.v.stride[0],
          .g_stride = a.g.stride[0],
          .beta_stride = a.beta.stride[0],
          .out_stride = a.out.stride[0],
          .Hk = n.Hk,
          .Dk = n.Dk,
          .Hv = n.Hv,
          .Dv = n.Dv};
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

int64_t value_heads_per_unit(int64_t units, int64_t r, int threads) {
  return units >= int64_t{2} * threads ? r : 1;
}

}  // namespace quire::gdn
