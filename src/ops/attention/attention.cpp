// Shape checks and the kernel tables of attention_prepare and paged_attention.
#include "ops/attention/attention.h"

#include "ops/attention/kernels.h"
#include "ops/cuda/ops.h"

namespace quire {
namespace {

using attention::Heads;

void check_cache(const KvLayer& kv, const Heads& n) {
  Dim blocks{"blocks"}, kv_heads{"Hkv", n.kv_heads};
  expect_shape("kv.k", kv.k, blocks, kv_heads, kBlockTokens * n.d);
  expect_shape("kv.v", kv.v, blocks, kv_heads, kBlockTokens * n.d);
  QUIRE_CHECK(kv.k.dtype == kv.v.dtype && (kv.k.dtype == DType::kBF16 || kv.k.dtype == DType::kF32),
              "kv: k is {} and v is {}, but both must be bf16 or both f32", dtype_name(kv.k.dtype),
              dtype_name(kv.v.dtype));
  QUIRE_CHECK(n.d > 0 && n.d % 2 == 0, "head dimension {} is not even", n.d);
  QUIRE_CHECK(n.kv_heads > 0 && n.q_heads % n.kv_heads == 0, "{} query heads do not share {} KV heads evenly",
              n.q_heads, n.kv_heads);
}

template <class Args>
bool always(const CpuFeatures&, const Args&) {
  return true;
}

// What every fast kernel asks for: bf16 everywhere and a head that its scratch was made for.
bool fits_fast(const PagedAttentionArgs& a) {
  return a.q.dtype == DType::kBF16 && a.out.dtype == DType::kBF16 && a.kv.k.dtype == DType::kBF16 &&
         (a.gate.empty() || a.gate.dtype == DType::kBF16) && a.q.dim(2) <= attention::kMaxHeadDim &&
         a.scale > 0.0f;
}
bool fits_amx(const CpuFeatures& cpu, const PagedAttentionArgs& a) {
  return cpu.amx_bf16 && cpu.avx512_bf16 && fits_fast(a) && a.q.dim(2) % 32 == 0;
}
bool fits_avx512(const CpuFeatures& cpu, const PagedAttentionArgs& a) {
  return cpu.avx512_bf16 && fits_fast(a);
}
bool fits_avx2(const CpuFeatures& cpu, const PagedAttentionArgs& a) {
  return cpu.avx2 && fits_fast(a);
}
template <void (*kTask)(const attention::RowTask&, const attention::TaskScratch&)>
void launch(const OpContext& ctx, const PagedAttentionArgs& a) {
  attention::run_tasks(ctx, a, kTask);
}

bool fits_prepare_avx2(const CpuFeatures& cpu, const AttentionPrepareArgs& a) {
  for (const Tensor* t : {&a.q_proj, &a.k_proj, &a.v_proj, &a.q, &a.kv.k})
    if (t->dtype != DType::kBF16) return false;
  return cpu.avx2 && (a.gate.empty() || a.gate.dtype == DType::kBF16) &&
         (a.q_norm.empty() || a.q_norm.dtype == DType::kF32) &&
         (a.k_norm.empty() || a.k_norm.dtype == DType::kF32);
}
// Heads, and what of them rotates, in whole vectors.
bool fits_prepare_avx512(const CpuFeatures& cpu, const AttentionPrepareArgs& a) {
  return cpu.avx512_bf16 && fits_prepare_avx2(cpu, a) && a.q.dim(2) % 32 == 0 && a.rope.n_rot % 32 == 0;
}
template <void (*kItem)(const AttentionPrepareArgs&, const attention::PrepareScratch&,
                        const attention::PrepareItem&)>
void launch_prepare(const OpContext& ctx, const AttentionPrepareArgs& a) {
  attention::run_items(ctx, a, kItem);
}

constexpr Kernel<AttentionPrepareArgs> kPrepareKernels[] = {
    {"avx512", fits_prepare_avx512, launch_prepare<attention::prepare_avx512>, CpuLevel::kAvx512Bf16},
    {"avx2", fits_prepare_avx2, launch_prepare<attention::prepare_avx2>},
    {"reference", always<AttentionPrepareArgs>, attention::prepare_reference},
};
constexpr Kernel<PagedAttentionArgs> kAttentionKernels[] = {
    {"amx", fits_amx, launch<attention::attend_amx>, CpuLevel::kAmx},
    {"avx512", fits_avx512, launch<attention::attend_avx512>, CpuLevel::kAvx512Bf16},
    {"avx2", fits_avx2, launch<attention::attend_avx2>},
    {"reference", always<PagedAttentionArgs>, attention::attend_reference},
};

}  // namespace

std::span<const Kernel<AttentionPrepareArgs>> attention_prepare_kernels() {
  return kPrepareKernels;
}
std::span<const Kernel<PagedAttentionArgs>> paged_attention_kernels() {
  return kAttentionKernels;
}

void attention_prepare(const OpContext& ctx, const AttentionPrepareArgs& a) {
  Dim rows{"T"}, heads{"H"}, d{"d"};
  expect_shape("q", a.q, rows, heads, d);
  const Heads n = attention::heads_of(a);
  if (!a.gate.empty()) expect_shape("gate", a.gate, rows, heads, d);
  expect_shape("q_proj", a.q_proj, rows, n.q_heads * n.d * (a.gate.empty() ? 1 : 2));
  expect_shape("k_proj", a.k_proj, rows, n.kv_heads * n.d);
  expect_shape("v_proj", a.v_proj, rows, n.kv_heads * n.d);
  if (!a.q_norm.empty()) expect_shape("q_norm", a.q_norm, d);
  if (!a.k_norm.empty()) expect_shape("k_norm", a.k_norm, d);
  QUIRE_CHECK(a.rope.n_rot >= 0 && a.rope.n_rot % 2 == 0 && a.rope.n_rot <= n.d &&
                  (a.rope.n_rot == 0 || a.rope.inv_freq.dim(0) * 2 >= a.rope.n_rot),
              "rope: {} of {} elements rotate, {} frequencies", a.rope.n_rot, n.d, a.rope.inv_freq.dim(0));
  check_cache(a.kv, n);
  if (ctx.device == Device::kCuda) return cuda::attention_prepare(ctx, a);
  dispatch("attention_prepare", attention_prepare_kernels(), ctx, a);
}

void paged_attention(const OpContext& ctx, const PagedAttentionArgs& a) {
  Dim rows{"T"}, heads{"H"}, d{"d"};
  expect_shape("q", a.q, rows, heads, d);
  if (!a.gate.empty()) expect_shape("gate", a.gate, rows, heads, d);
  const Heads n = attention::heads_of(a);
  expect_shape("out", a.out, rows, n.q_heads * n.d);
  check_cache(a.kv, n);
  if (ctx.device == Device::kCuda) return cuda::paged_attention(ctx, a);
  dispatch("paged_attention", paged_attention_kernels(), ctx, a);
}

}  // namespace quire
