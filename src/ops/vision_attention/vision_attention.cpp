// Shape checks of vision_attention and the table of its kernels.
#include "ops/vision_attention/vision_attention.h"

#include "ops/kernel_table.h"
#include "ops/vision_attention/cuda/kernels.h"
#include "ops/vision_attention/kernels.h"

namespace quire {
namespace {

using attention::kMaxHeadDim;
using vision_attention_detail::run_tasks;

bool fits_fast(const VisionAttentionArgs& a) {
  for (const Tensor* t : {&a.q, &a.k, &a.v, &a.out})
    if (t->dtype != DType::kBF16) return false;
  return a.q.dim(2) <= kMaxHeadDim && a.scale > 0.0f;
}
bool fits_amx(const Machine& m, const VisionAttentionArgs& a) {
  return m.cpu.amx_bf16 && m.cpu.avx512_bf16 && fits_fast(a);
}
bool fits_avx512(const Machine& m, const VisionAttentionArgs& a) {
  return m.cpu.avx512_bf16 && fits_fast(a);
}
bool fits_avx2(const Machine& m, const VisionAttentionArgs& a) {
  return m.cpu.base && fits_fast(a);
}

// A tile holds 32 elements of a head.
template <void (*kTask)(const attention::RowTask&, const attention::TaskScratch&), int64_t kMultiple>
void launch(const OpContext& ctx, const VisionAttentionArgs& a) {
  run_tasks(ctx, a, kMultiple, kTask);
}

constexpr auto kKernels = joined(  //
    cuda_rows<VisionAttentionArgs>({
        {"cuda", cuda::vision_attention_fits, cuda::vision_attention, GpuLevel::kMma, nullptr,
         cuda::kVisionAttentionTakes},
    }),
    x86_rows<VisionAttentionArgs>({
        {"amx", fits_amx, launch<attention::attend_amx, 32>, CpuLevel::kAmx},
        {"avx512", fits_avx512, launch<attention::attend_avx512, 8>, CpuLevel::kAvx512Bf16},
    }),
    kernel_rows<VisionAttentionArgs>({
        {kBaseLevel, fits_avx2, launch<attention::attend_avx2, 8>},
        {"reference", fits_always<VisionAttentionArgs>, vision_attention_detail::reference},
    }));

// Every pair of a span is a product of two heads, an exponential, and a value that is added.
Traffic traffic_of(const VisionAttentionArgs& a) {
  const int64_t d = a.q.dim(2), turned = a.rotation.positions.empty() ? 0 : a.q.elems() + a.k.elems();
  return {.bytes = a.q.bytes() + a.k.bytes() + a.v.bytes() + a.out.bytes() + a.rotation.positions.bytes(),
          .flops = a.spans.pairs * a.q.dim(1) * (4 * d + kExpFlops) + 3 * turned};
}

std::string describe_args(const VisionAttentionArgs& a) {
  return fmt::format("q {}, {} spans of up to {} rows{}", describe(a.q), a.spans.count, a.spans.most_rows,
                     a.rotation.positions.empty()              ? ""
                     : a.rotation.pairs == PlanePairs::kAcross ? ", rotated"
                                                               : ", rotated by halves");
}

void check(const VisionAttentionArgs& a) {
  Dim rows{"T"}, heads{"H"}, d{"d"};
  const auto expect = [&](std::string_view name, const Tensor& t) {
    expect_shape(name, t, rows, heads, d);
    QUIRE_CHECK(t.stride[1] == d && t.stride[2] == 1, "{}: a row's heads must be contiguous", name);
  };
  expect("q", a.q);
  expect("k", a.k);
  expect("v", a.v);
  QUIRE_CHECK(d > 0 && d % 8 == 0, "a head of {} elements is no multiple of 8", d.value);
  expect_shape("out", a.out, rows, int64_t{heads * d});
  if (a.rotation.positions.empty()) return;
  expect_shape("positions", a.rotation.positions, rows, 2);
  expect_shape("inv_freq", a.rotation.inv_freq, d / 4);
  QUIRE_CHECK(a.rotation.positions.stride[1] == 1 && a.rotation.side > 0, "positions: a side of {}", a.rotation.side);
}

}  // namespace

constinit const Operator<VisionAttentionArgs> kVisionAttentionOp{"vision_attention", kKernels, traffic_of,
                                                                 describe_args};

void vision_attention(const OpContext& ctx, const VisionAttentionArgs& a) {
  check(a);
  dispatch(kVisionAttentionOp, ctx, a);
}

}  // namespace quire
