// Shape checks and the kernel tables of attention_prepare and paged_attention.
#include "ops/attention/attention.h"

#include "ops/attention/cuda/kernels.h"
#include "ops/attention/kernels.h"
#include "ops/kernel_table.h"

namespace quire {
namespace {

using attention::Heads;

void check_cache(const KvLayer& kv, const Heads& n) {
  Dim blocks{"blocks"}, kv_heads{"Hkv", n.kv_heads};
  expect_shape("kv.k", kv.k, blocks, kv_heads, kv_head_elems(kv.k.dtype, n.d));
  expect_shape("kv.v", kv.v, blocks, kv_heads, kv_head_elems(kv.v.dtype, n.d));
  const DType type = kv.k.dtype;
  QUIRE_CHECK(type == kv.v.dtype && (type == DType::kBF16 || type == DType::kF32 || type == DType::kF8E4M3),
              "kv: k is {} and v is {}, but both must be bf16, f32 or E4M3", dtype_name(type), dtype_name(kv.v.dtype));
  QUIRE_CHECK(n.d > 0 && n.d % 2 == 0, "head dimension {} is not even", n.d);
  QUIRE_CHECK(n.kv_heads > 0 && n.q_heads % n.kv_heads == 0, "{} query heads do not share {} KV heads evenly",
              n.q_heads, n.kv_heads);
}

// What every fast kernel asks for: bf16 everywhere, or E4M3 in the cache, and a head that its scratch was made for.
bool fits_fast(const PagedAttentionArgs& a) {
  return a.q.dtype == DType::kBF16 && a.out.dtype == DType::kBF16 && a.kv.k.dtype != DType::kF32 &&
         (a.gate.empty() || a.gate.dtype == DType::kBF16) && a.q.dim(2) <= attention::kMaxHeadDim && a.scale > 0.0f;
}
bool fits_amx(const Machine& m, const PagedAttentionArgs& a) {
  return m.cpu.amx_bf16 && m.cpu.avx512_bf16 && fits_fast(a) && a.q.dim(2) % 32 == 0;
}
bool fits_avx512(const Machine& m, const PagedAttentionArgs& a) {
  return m.cpu.avx512_bf16 && fits_fast(a);
}
bool fits_avx2(const Machine& m, const PagedAttentionArgs& a) {
  return m.cpu.base && fits_fast(a);
}
template <void (*kTask)(const attention::RowTask&, const attention::TaskScratch&)>
void launch(const OpContext& ctx, const PagedAttentionArgs& a) {
  attention::run_tasks(ctx, a, kTask);
}

bool fits_prepare_avx2(const Machine& m, const AttentionPrepareArgs& a) {
  for (const Tensor* t : {&a.q_proj, &a.k_proj, &a.v_proj, &a.q})
    if (!t->empty() && t->dtype != DType::kBF16) return false;
  return m.cpu.base && a.kv.k.dtype != DType::kF32 && (a.gate.empty() || a.gate.dtype == DType::kBF16) &&
         (a.q_norm.empty() || a.q_norm.dtype == DType::kF32) && (a.k_norm.empty() || a.k_norm.dtype == DType::kF32) &&
         (a.v_norm.empty() || a.v_norm.dtype == DType::kF32);
}
// Heads, and what of them rotates, in whole vectors.
bool fits_prepare_avx512(const Machine& m, const AttentionPrepareArgs& a) {
  return m.cpu.avx512_bf16 && fits_prepare_avx2(m, a) && a.q.dim(2) % 32 == 0 && a.rope.n_rot % 32 == 0;
}
template <void (*kItem)(const AttentionPrepareArgs&, const attention::PrepareScratch&, const attention::PrepareItem&)>
void launch_prepare(const OpContext& ctx, const AttentionPrepareArgs& a) {
  attention::run_items(ctx, a, kItem);
}

constexpr auto kPrepareKernels = joined(  //
    cuda_rows<AttentionPrepareArgs>({
        {"cuda", cuda::attention_prepare_fits, cuda::attention_prepare, GpuLevel::kMma, nullptr,
         cuda::kAttentionPrepareTakes},
    }),
    x86_rows<AttentionPrepareArgs>({
        {"avx512", fits_prepare_avx512, launch_prepare<attention::prepare_avx512>, CpuLevel::kAvx512Bf16},
    }),
    kernel_rows<AttentionPrepareArgs>({
        {kBaseLevel, fits_prepare_avx2, launch_prepare<attention::prepare_avx2>},
        {"reference", fits_always<AttentionPrepareArgs>, attention::prepare_reference},
    }));
constexpr auto kAttentionKernels = joined(  //
    cuda_rows<PagedAttentionArgs>({
        {"cuda_wgmma", cuda::attention_wgmma_fits, cuda::attention_wgmma, GpuLevel::kWgmma, nullptr,
         cuda::kAttentionWgmmaTakes},
        {"cuda_mma", cuda::attention_mma_fits, cuda::attention_mma, GpuLevel::kNoWgmma, nullptr,
         cuda::kAttentionMmaTakes},
        {"cuda_wide", cuda::attention_wide_fits, cuda::attention_wide, GpuLevel::kMma, nullptr,
         cuda::kAttentionWideTakes},
    }),
    x86_rows<PagedAttentionArgs>({
        {"amx", fits_amx, launch<attention::attend_amx>, CpuLevel::kAmx},
        {"avx512", fits_avx512, launch<attention::attend_avx512>, CpuLevel::kAvx512Bf16},
    }),
    kernel_rows<PagedAttentionArgs>({
        {kBaseLevel, fits_avx2, launch<attention::attend_avx2>},
        {"reference", fits_always<PagedAttentionArgs>, attention::attend_reference},
    }));

// How many elements the keys and values of so many tokens have.
int64_t kv_elems(const KvLayer& kv, int64_t tokens, int64_t d) {
  return 2 * tokens * kv.k.dim(1) * kv_head_elems(kv.k.dtype, d) / kBlockTokens;
}

Traffic traffic_of(const AttentionPrepareArgs& a) {
  const int64_t rows = a.q.dim(0), kv_heads = attention::written_heads(a), d = a.q.dim(2);
  const int64_t kv_normed = (a.k_norm.empty() ? 0 : 1) + (a.v_norm.empty() ? 0 : 1);
  const int64_t normed = (a.q_norm.empty() ? 0 : a.q.elems()) + kv_normed * rows * kv_heads * d;
  // Angles are computed once for a row and shared by its heads: too few to count.
  const int64_t rotated = rows * (a.q.dim(1) + kv_heads) * a.rope.n_rot;
  return {.bytes = a.q_proj.bytes() + a.k_proj.bytes() + a.v_proj.bytes() + a.q_norm.bytes() + a.k_norm.bytes() +
                   a.v_norm.bytes() + a.q.bytes() + a.gate.bytes() +
                   dtype_bytes(a.kv.k.dtype, kv_heads > 0 ? kv_elems(a.kv, rows, d) : 0),
          .flops = 4 * normed + 3 * rotated};
}

Traffic traffic_of(const PagedAttentionArgs& a) {
  const SegmentArray& s = a.segments;
  const int64_t heads = a.q.dim(1), d = a.q.dim(2), prompt = s.prompt_rows;
  // Within a window, if there is one: of each sequence, and of each row of a prompt.
  const int64_t window = a.window > 0 ? a.window : INT64_MAX / (s.decodes + 1);
  const int64_t decode_keys = std::min<int64_t>(s.decode_keys, s.decodes * window);
  const int64_t decode_pairs = s.decodes == 0 ? 0 : decode_keys * s.decode_rows / s.decodes;
  const int64_t rising = std::min(prompt, window);  // rows that see one key more than the row before them
  const int64_t pairs = decode_pairs + rising * (rising + 1) / 2 + (prompt - rising) * rising;
  const int64_t gated = a.gate.empty() ? 0 : a.q.elems();
  return {.bytes = a.q.bytes() + a.gate.bytes() + a.out.bytes() + a.sinks.bytes() +
                   dtype_bytes(a.kv.k.dtype, kv_elems(a.kv, decode_keys + prompt, d)),
          .flops = pairs * heads * (4 * d + kExpFlops) + gated * kSiluFlops};
}

std::string describe_args(const AttentionPrepareArgs& a) {
  return fmt::format("q {}, kv {}{}{}", describe(a.q), describe(a.kv.k), a.v_norm.empty() ? "" : ", norms of values",
                     a.k_proj.empty() ? ", queries alone" : "") +
         (a.coordinates.empty() ? "" : ", coordinates");
}
std::string describe_args(const PagedAttentionArgs& a) {
  const SegmentArray& s = a.segments;
  return fmt::format("q {}, kv {}, {} rows of {} sequences and {} of prompts{}{}", describe(a.q), describe(a.kv.k),
                     s.decode_rows, s.decodes, s.prompt_rows,
                     a.window > 0 ? fmt::format(", a sliding window of {}", a.window) : "",
                     a.sinks.empty() ? "" : ", sinks") +
         (a.ends.empty() ? "" : ", ends of rows");
}

}  // namespace

constinit const Operator<AttentionPrepareArgs> kAttentionPrepareOp{"attention_prepare", kPrepareKernels, traffic_of,
                                                                   describe_args};
constinit const Operator<PagedAttentionArgs> kPagedAttentionOp{"paged_attention", kAttentionKernels, traffic_of,
                                                               describe_args};

void attention_prepare(const OpContext& ctx, const AttentionPrepareArgs& a) {
  Dim rows{"T"}, heads{"H"}, d{"d"};
  expect_shape("q", a.q, rows, heads, d);
  const Heads n = attention::heads_of(a);
  if (!a.gate.empty()) expect_shape("gate", a.gate, rows, heads, d);
  expect_shape("q_proj", a.q_proj, rows, n.q_heads * n.d * (a.gate.empty() ? 1 : 2));
  QUIRE_CHECK(a.k_proj.empty() == a.v_proj.empty(), "attention_prepare: {} without {}",
              a.v_proj.empty() ? "keys" : "values", a.v_proj.empty() ? "values" : "keys");
  if (!a.k_proj.empty()) {
    expect_shape("k_proj", a.k_proj, rows, n.kv_heads * n.d);
    expect_shape("v_proj", a.v_proj, rows, n.kv_heads * n.d);
  }
  if (!a.q_norm.empty()) expect_shape("q_norm", a.q_norm, d);
  if (!a.k_norm.empty()) expect_shape("k_norm", a.k_norm, d);
  if (!a.v_norm.empty()) expect_shape("v_norm", a.v_norm, d);
  QUIRE_CHECK(a.rope.n_rot >= 0 && a.rope.n_rot % 2 == 0 && a.rope.n_rot <= n.d &&
                  (a.rope.n_rot == 0 || a.rope.inv_freq.dim(0) * 2 >= a.rope.n_rot),
              "rope: {} of {} elements rotate, {} frequencies", a.rope.n_rot, n.d, a.rope.inv_freq.dim(0));
  QUIRE_CHECK(a.coordinates.empty() == a.rope.axes.empty(), "rope: coordinates and axes go together");
  if (!a.coordinates.empty()) {
    expect_shape("coordinates", a.coordinates, rows, 3);
    expect_shape("rope.axes", a.rope.axes, a.rope.n_rot / 2);
  }
  check_cache(a.kv, n);
  dispatch(kAttentionPrepareOp, ctx, a);
}

void paged_attention(const OpContext& ctx, const PagedAttentionArgs& a) {
  Dim rows{"T"}, heads{"H"}, d{"d"};
  expect_shape("q", a.q, rows, heads, d);
  if (!a.gate.empty()) expect_shape("gate", a.gate, rows, heads, d);
  const Heads n = attention::heads_of(a);
  expect_shape("out", a.out, rows, n.q_heads * n.d);
  QUIRE_CHECK(a.window >= 0, "paged_attention: a window of {}", a.window);
  if (!a.sinks.empty()) expect_shape("sinks", a.sinks, heads);
  if (!a.ends.empty()) expect_shape("ends", a.ends, rows);
  check_cache(a.kv, n);
  dispatch(kPagedAttentionOp, ctx, a);
}

}  // namespace quire
