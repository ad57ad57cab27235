// The order of preference among the cores: the same in the tables of linear, swiglu_mlp and moe.
#pragma once

#include <algorithm>

#include "ops/gemm/core.h"
#include "ops/kernel_table.h"

namespace quire::gemm {

// Whether the tokens are bf16 and every weight is of a type that passes.
inline bool fits_bf16(DType tokens, std::initializer_list<const Weight*> weights, bool (*passes)(DType)) {
  if (tokens != DType::kBF16) return false;
  for (const Weight* w : weights)
    if (!w->empty() && !passes(w->dtype)) return false;
  return true;
}

template <class Args, bool (*kFitsBf16)(const Args&, bool (*)(DType))>
bool all_have_integers(const Args& a) {
  return kFitsBf16(a, has_integers);
}

// The table {integer, vector, amx, avx512, integer_avxvnni; bfmmla, integer_i8mm, integer_dotprod; integer_avx2 or
// integer_neon, avx2 or neon, reference} from kRun(core, ctx, args), kReference(ctx, args) and kFitsBf16(args, passes).
// The first two take calls for latency: tiles are slow where one token meets a weight, the more so while another guest
// of the machine uses them. Without AVX-512 integers are the fastest for all calls that kFitsIntegers(args) says they
// serve.
template <class Args, void (*kRun)(const Core&, const OpContext&, const Args&),
          void (*kReference)(const OpContext&, const Args&), bool (*kFitsBf16)(const Args&, bool (*)(DType)),
          bool (*kFitsIntegers)(const Args&) = all_have_integers<Args, kFitsBf16>>
inline constexpr auto kTable = joined(
    x86_rows<Args>({
        {"integer",
         [](const Machine& m, const Args& a) {
           return m.cpu.avx512_bf16 && a.for_latency() && kFitsBf16(a, has_integers);
         },
         [](const OpContext& ctx, const Args& a) { kRun(kIntegerCore, ctx, a); }, CpuLevel::kAvx512Bf16},
        {"vector",
         [](const Machine& m, const Args& a) {
           return m.cpu.avx512_bf16 && a.for_latency() &&
                  kFitsBf16(a, [](DType t) { return t == DType::kBF16 || t == DType::kFP8; });
         },
         [](const OpContext& ctx, const Args& a) { kRun(kAvx512Core, ctx, a); }, CpuLevel::kAvx512Bf16},
        {"amx", [](const Machine& m, const Args& a) { return m.cpu.amx_bf16 && kFitsBf16(a, rounds_to_bf16); },
         [](const OpContext& ctx, const Args& a) { kRun(kAmxCore, ctx, a); }, CpuLevel::kAmx},
        {"avx512", [](const Machine& m, const Args& a) { return m.cpu.avx512_bf16 && kFitsBf16(a, rounds_to_bf16); },
         [](const OpContext& ctx, const Args& a) { kRun(kAvx512Core, ctx, a); }, CpuLevel::kAvx512Bf16},
        {"integer_avxvnni", [](const Machine& m, const Args& a) { return m.cpu.avx_vnni && kFitsIntegers(a); },
         [](const OpContext& ctx, const Args& a) { kRun(kIntegerAvxVnniCore, ctx, a); }, CpuLevel::kAvxVnni},
    }),
    arm_rows<Args>({
        {"bfmmla",
         [](const Machine& m, const Args& a) {
           return m.cpu.bf16 && kFitsBf16(a, [](DType t) { return t == DType::kBF16; });
         },
         [](const OpContext& ctx, const Args& a) { kRun(kBfmmlaCore, ctx, a); }, CpuLevel::kBf16},
        {"integer_i8mm", [](const Machine& m, const Args& a) { return m.cpu.i8mm && kFitsIntegers(a); },
         [](const OpContext& ctx, const Args& a) { kRun(kIntegerI8mmCore, ctx, a); }, CpuLevel::kI8mm},
        {"integer_dotprod", [](const Machine& m, const Args& a) { return m.cpu.dotprod && kFitsIntegers(a); },
         [](const OpContext& ctx, const Args& a) { kRun(kIntegerDotProdCore, ctx, a); }, CpuLevel::kDotProd},
    }),
    kernel_rows<Args>({
        {kIntegerBaseName, [](const Machine& m, const Args& a) { return m.cpu.base && kFitsIntegers(a); },
         [](const OpContext& ctx, const Args& a) { kRun(kIntegerBaseCore, ctx, a); }},
        {kBaseLevel, [](const Machine& m, const Args&) { return m.cpu.base; },
         [](const OpContext& ctx, const Args& a) { kRun(kBaseCore, ctx, a); }},
        {"reference", fits_always<Args>, kReference},
    }));

// Calls run(args) for the rows that are computed for latency, for those that are rounded and for the others, apart
// where there are several kinds.
template <class Args, class Run>
void split_rows(const Args& a, int64_t tokens, Run&& run) {
  const int64_t rounded = a.rounded.rows;
  QUIRE_CHECK(a.latency_rows >= 0 && rounded >= 0 && a.latency_rows + rounded <= tokens,
              "{} rows for latency and {} that are rounded of {}", a.latency_rows, rounded, tokens);
  int64_t begin = 0;
  for (const int64_t end : {a.latency_rows, tokens - rounded, tokens}) {
    if (end == begin) continue;
    if (begin == 0 && end == tokens) return run(a);
    run(a.rows(begin, end - begin));
    begin = end;
  }
}

}  // namespace quire::gemm
