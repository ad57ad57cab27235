#include "ops/sampling/sampling.h"

#include <cmath>

#include "ops/kernel_table.h"
#include "ops/sampling/cuda/kernels.h"
#include "ops/sampling/internal.h"

namespace quire {
namespace {

// Written so that NaN is out of every range.
Status check_range(const char* name, float value, float lo, float hi) {
  if (value >= lo && value <= hi) return {};
  return request_error("{} is {}, but must be between {} and {}", name, value, lo, hi);
}

constexpr auto kKernels = joined(  //
    cuda_rows<SampleArgs>({
        {"cuda", cuda::sample_fits, cuda::sample, GpuLevel::kMma, nullptr, cuda::kSampleTakes},
    }),
    kernel_rows<SampleArgs>({
        {"avx512", has_avx512<SampleArgs>, sampling::sample_avx512, CpuLevel::kAvx512},
        {"avx2", fits_always<SampleArgs>, sampling::sample_avx2},
        {"reference", fits_always<SampleArgs>, sampling::sample_reference},
    }));

Traffic traffic_of(const SampleArgs& a) {
  return {.bytes = a.logits.bytes()};
}

std::string describe_args(const SampleArgs& a) {
  return fmt::format("logits {}, {} alternatives", describe(a.logits), a.out.top_ids.dim(1));
}

}  // namespace

Status SamplingParams::validate(int64_t vocab_size) const {
  if (!(temperature >= 0.0f) || !std::isfinite(temperature))
    return request_error("temperature is {}, but must be 0 (greedy) or positive and finite", temperature);
  if (top_k < 0) return request_error("top_k is {}, but must be 0 (off) or positive", top_k);
  QUIRE_CHECKED(check_range("top_p", top_p, 0.0f, 1.0f));
  QUIRE_CHECKED(check_range("min_p", min_p, 0.0f, 1.0f));
  QUIRE_CHECKED(check_range("typical_p", typical_p, 0.0f, 1.0f));
  QUIRE_CHECKED(check_range("repetition_penalty", repetition_penalty, 0.01f, 100.0f));
  QUIRE_CHECKED(check_range("presence_penalty", presence_penalty, -2.0f, 2.0f));
  QUIRE_CHECKED(check_range("frequency_penalty", frequency_penalty, -2.0f, 2.0f));
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab_size)
      return request_error("logit_bias names token {}, but the vocabulary has ids 0 to {}", id, vocab_size - 1);
    if (!(bias >= -100.0f && bias <= 100.0f))
      return request_error("logit_bias of token {} is {}, but must be between -100 and 100", id, bias);
  }
  if (logprobs < -1 || logprobs > vocab_size)
    return request_error("logprobs is {}, but must be between 0 and the vocabulary's size of {} (or -1 for none)",
                         logprobs, vocab_size);
  return {};
}

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
