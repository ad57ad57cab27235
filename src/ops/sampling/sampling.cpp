#include "ops/sampling/sampling.h"

#include <cmath>

#include "ops/sampling/internal.h"
#include "ops/sampling/philox.h"

namespace quire {
namespace {

// Written so that NaN is out of every range.
Status check_range(const char* name, float value, float lo, float hi) {
  if (value >= lo && value <= hi) return {};
  return request_error("{} is {}, but must be between {} and {}", name, value, lo, hi);
}

bool always(const CpuFeatures&, const SampleArgs&) {
  return true;
}

constexpr Kernel<SampleArgs> kKernels[] = {
    {"cpu", always, sampling::sample_cpu},
    {"reference", always, sampling::sample_reference},
};

void check_ids(const char* what, std::span<const int32_t> ids, int64_t vocab) {
  for (const int32_t id : ids) QUIRE_CHECK(id >= 0 && id < vocab, "{}: id {} of {}", what, id, vocab);
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
      return request_error("logit_bias names token {}, but the vocabulary has ids 0 to {}", id,
                           vocab_size - 1);
    if (!(bias >= -100.0f && bias <= 100.0f))
      return request_error("logit_bias of token {} is {}, but must be between -100 and 100", id, bias);
  }
  if (logprobs < -1 || logprobs > vocab_size)
    return request_error(
        "logprobs is {}, but must be between 0 and the vocabulary's size of {} (or -1 for none)", logprobs,
        vocab_size);
  return {};
}

std::span<const Kernel<SampleArgs>> sample_kernels() {
  return kKernels;
}

void sample(const OpContext& ctx, const SampleArgs& a) {
  Dim R{"R"}, V{"V"};
  expect_shape("logits", a.logits, R, V);
  QUIRE_CHECK(std::ssize(a.rows) == R && std::ssize(a.out) == R, "{} rows of logits, {} rows, {} outputs",
              R.value, a.rows.size(), a.out.size());
  for (const SampleRow& row : a.rows) {
    QUIRE_CHECK(row.params != nullptr, "a row without parameters");
    check_ids("suppressed", row.suppressed, V);
    for (const auto& bias : row.params->logit_bias) check_ids("logit_bias", {&bias.first, 1}, V);
    if (!sampling::has_penalties(*row.params)) continue;
    check_ids("prompt", row.prompt, V);
    check_ids("output", row.output, V);
  }
  dispatch("sample", sample_kernels(), ctx, a);
}

double sample_uniform(uint64_t seed, int64_t position) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto p = static_cast<uint64_t>(position);
  const PhiloxCounter r = philox4x32({low(p), low(p >> 32), 0, 0}, {low(seed), low(seed >> 32)});
  return static_cast<double>((uint64_t{r[0]} << 32 | r[1]) >> 11) * 0x1p-53;
}

}  // namespace quire
