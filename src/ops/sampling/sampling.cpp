#include "ops/sampling/sampling.h"

#include "ops/kernel_table.h"
#include "ops/sampling/cuda/kernels.h"
#include "ops/sampling/internal.h"

namespace quire {
namespace {

constexpr auto kKernels = joined(  //
    cuda_rows<SampleArgs>({
        {"cuda", cuda::sample_fits, cuda::sample, GpuLevel::kMma, nullptr, cuda::kSampleTakes},
    }),
    x86_rows<SampleArgs>({
        {"avx512", has_avx512<SampleArgs>, sampling::sample_avx512, CpuLevel::kAvx512},
    }),
    kernel_rows<SampleArgs>({
        {kBaseLevel, fits_always<SampleArgs>, sampling::sample_avx2},
        {"reference", fits_always<SampleArgs>, sampling::sample_reference},
    }));

Traffic traffic_of(const SampleArgs& a) {
  return {.bytes = a.logits.bytes()};
}

std::string describe_args(const SampleArgs& a) {
  return fmt::format("logits {}, {} alternatives", describe(a.logits), a.out.top_ids.dim(1));
}

}  // namespace

constinit const Operator<SampleArgs> kSampleOp{"sample", kKernels, traffic_of, describe_args};

// Shapes only. What the rows say was checked where the step was built (rows.h): here they may lie in memory
// that the host cannot read.
void sample(const OpContext& ctx, const SampleArgs& a) {
  Dim R{"R"}, V{"V"}, top{"max_top"}, batch_slots{"batch_slots"};
  expect_shape("logits", a.logits, R, V);
  expect_shape("tokens", a.out.tokens, R);
  expect_shape("logprobs", a.out.logprobs, R);
  expect_shape("top_ids", a.out.top_ids, R, top);
  expect_shape("top_logprobs", a.out.top_logprobs, R, top);
  expect_shape("top_count", a.out.top_count, R);
  if (!a.out.ranks.empty()) expect_shape("ranks", a.out.ranks, R);
  if (!a.out.sampled.empty()) expect_shape("sampled", a.out.sampled, batch_slots);
  if (R == 0) return;
  QUIRE_CHECK(V >= 1 && V <= INT32_MAX, "a vocabulary of {} tokens", V.value);
  QUIRE_CHECK(a.rows != nullptr, "{} rows of logits, but no parameters", R.value);
  QUIRE_CHECK(a.suppressed_count == 0 || a.suppressed != nullptr, "{} suppressed ids at null", a.suppressed_count);
  QUIRE_CHECK(a.history.rows == 0 || a.history.vocab == V, "histories of {} tokens, logits of {}", a.history.vocab,
              V.value);
  QUIRE_CHECK(a.ids == nullptr || (a.history.rows == 0 && a.suppressed_count == 0 && a.masks == nullptr && top == 0),
              "ids for the logits' columns beside histories of {}, {} suppressed tokens and {} likeliest",
              a.history.rows, a.suppressed_count, top.value);
  dispatch(kSampleOp, ctx, a);
}

Sampled read_sampled(const SampleOutputs& out, int64_t r) {
  Sampled s{out.tokens.as<int32_t>()[r], out.logprobs.as<float>()[r], {}};
  const int32_t* const ids = out.top_ids.row<int32_t>(r);
  const float* const logprobs = out.top_logprobs.row<float>(r);
  const int32_t count = out.top_count.as<int32_t>()[r];
  s.top.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) s.top.push_back({ids[i], logprobs[i]});
  return s;
}

}  // namespace quire
