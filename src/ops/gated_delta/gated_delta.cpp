// The tables of kernels behind the gated-delta-net operators, in order of preference.
#include "ops/gated_delta/gated_delta.h"

#include "ops/gated_delta/launch.h"
#include "ops/kernel_table.h"

namespace quire {
namespace {

constexpr auto kPrepare = joined(
    x86_rows<GdnPrepareArgs>({
        {"avx512", [](const Machine& m, const GdnPrepareArgs& a) { return m.cpu.avx512 && gdn::prepare_fits(a); },
         gdn::prepare_cpu<gdn::prepare_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<GdnPrepareArgs>({
        {kBaseLevel, [](const Machine& m, const GdnPrepareArgs& a) { return m.cpu.base && gdn::prepare_fits(a); },
         gdn::prepare_cpu<gdn::prepare_avx2>},
        {"reference", fits_always<GdnPrepareArgs>, gdn::prepare_reference},
    }));
constexpr auto kChunked = joined(
    x86_rows<GatedDeltaArgs>({
        {"amx",
         [](const Machine& m, const GatedDeltaArgs& a) {
           return m.cpu.amx_bf16 && a.q.dtype == DType::kBF16 && gdn::chunked_fits(a, 32);
         },
         gdn::chunked_cpu<gdn::chunked_amx, gdn::chunked_scratch_amx>, CpuLevel::kAmx},
        {"avx512", [](const Machine& m, const GatedDeltaArgs& a) { return m.cpu.avx512 && gdn::chunked_fits(a, 16); },
         gdn::chunked_cpu<gdn::chunked_avx512, gdn::chunked_scratch_f32>, CpuLevel::kAvx512},
    }),
    kernel_rows<GatedDeltaArgs>({
        {kBaseLevel, [](const Machine& m, const GatedDeltaArgs& a) { return m.cpu.base && gdn::chunked_fits(a, 8); },
         gdn::chunked_cpu<gdn::chunked_avx2, gdn::chunked_scratch_f32>},
        {"reference", fits_always<GatedDeltaArgs>, gdn::chunked_reference},
    }));
constexpr auto kRecurrent = joined(
    x86_rows<GatedDeltaArgs>({
        {"avx512", [](const Machine& m, const GatedDeltaArgs& a) { return m.cpu.avx512 && gdn::recurrent_fits(a, 16); },
         gdn::recurrent_cpu<gdn::recurrent_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<GatedDeltaArgs>({
        {kBaseLevel, [](const Machine& m, const GatedDeltaArgs& a) { return m.cpu.base && gdn::recurrent_fits(a, 8); },
         gdn::recurrent_cpu<gdn::recurrent_avx2>},
        {"reference", fits_always<GatedDeltaArgs>, gdn::recurrent_reference},
    }));

constexpr int64_t kF32 = sizeof(float);

Traffic traffic_of(const GdnPrepareArgs& a) {
  const int64_t rows = a.qkv.dim(0), channels = a.qkv.dim(1), taps = a.conv_weight.dim(1);
  const SegmentArray& s = a.segments;
  const int64_t ring_rows = s.count * (taps - 1) + s.decode_rows + (s.count - s.decodes) * a.cache.conv.dim(1);
  const int64_t normed = a.q.elems() + a.k.elems();
  return {.bytes = a.qkv.bytes() + a.a.bytes() + a.b.bytes() + a.conv_weight.bytes() + a.ssm_a.bytes() +
                   a.dt_bias.bytes() + dtype_bytes(a.cache.conv.dtype, ring_rows * channels) + a.q.bytes() +
                   a.k.bytes() + a.v.bytes() + a.g.bytes() + a.beta.bytes(),
          .flops = rows * channels * (2 * taps + kSiluFlops) + 3 * normed +
                   (a.g.elems() + a.beta.elems()) * (kExpFlops + 3)};
}

// What a row of one kind of segment brings and takes: q, k, v, g, beta, out.
int64_t row_bytes(const GatedDeltaArgs& a) {
  const int64_t keys = a.q.dim(1) * a.q.dim(2), values = a.v.dim(1) * a.v.dim(2);
  return dtype_bytes(a.q.dtype, 2 * keys + 2 * values) + 2 * a.v.dim(1) * kF32;
}

Traffic chunked_traffic(const GatedDeltaArgs& a) {
  const int64_t dk = a.q.dim(2), heads = a.v.dim(1), dv = a.v.dim(2), rows = a.segments.prompt_rows;
  const int64_t segments = a.segments.count - a.segments.decodes;
  return {.bytes = rows * row_bytes(a) + segments * 2 * heads * dv * dk * kF32,
          .flops = rows * heads * (2 * kChunkTokens * (3 * dk + 2 * dv) + 6 * dk * dv)};
}

// On average over all phases: half of kTwiceMeanPending tokens are pending, and every kPendingTokens-th row writes
// S0.
Traffic recurrent_traffic(const GatedDeltaArgs& a) {
  constexpr int64_t kTwiceMeanPending = kPendingTokens - 1;
  const int64_t dk = a.q.dim(2), heads = a.v.dim(1), dv = a.v.dim(2), rows = a.segments.decode_rows;
  const int64_t state = heads * dv * dk * kF32, segments = a.segments.decodes;
  const int64_t token = dtype_bytes(a.q.dtype, a.q.dim(1) * dk) + heads * (dv + 1) * kF32;
  return {.bytes = rows * (row_bytes(a) + token + state / kPendingTokens) +
                   segments * (state + kTwiceMeanPending * token / 2),
          .flops = rows * heads * (6 * dk * dv + 2 * kTwiceMeanPending * (dk + dv))};
}

std::string describe_args(const GdnPrepareArgs& a) {
  return fmt::format("qkv {}, conv {}", describe(a.qkv), describe(a.conv_weight));
}
std::string describe_args(const GatedDeltaArgs& a) {
  const SegmentArray& s = a.segments;
  return fmt::format("k {}, v {}, {} rows of {} sequences and {} of prompts", describe(a.k), describe(a.v),
                     s.decode_rows, s.decodes, s.prompt_rows);
}

}  // namespace

constinit const Operator<GdnPrepareArgs> kGdnPrepareOp{"gdn_prepare", kPrepare, traffic_of, describe_args};
constinit const Operator<GatedDeltaArgs> kGdnChunkedOp{"gdn_chunked", kChunked, chunked_traffic, describe_args};
constinit const Operator<GatedDeltaArgs> kGdnRecurrentOp{"gdn_recurrent", kRecurrent, recurrent_traffic, describe_args};

void gdn_prepare(const OpContext& ctx, const GdnPrepareArgs& a) {
  dispatch(kGdnPrepareOp, ctx, a);
}
void gdn_chunked(const OpContext& ctx, const GatedDeltaArgs& a) {
  dispatch(kGdnChunkedOp, ctx, a);
}
void gdn_recurrent(const OpContext& ctx, const GatedDeltaArgs& a) {
  dispatch(kGdnRecurrentOp, ctx, a);
}

}  // namespace quire
