#include "ops/sampling/params.h"

namespace quire {

std::string SamplingField::must_be() const {
  return high == kAnyCount ? fmt::format("at least {}", low) : fmt::format("between {} and {}", low, high);
}

Status SamplingParams::validate(int64_t vocab_size) const {
  Status status;
  each_sampling_field(*this, [&](const SamplingField& field, const auto& value) {
    if (status.ok() && !field.allows(value))
      status = request_error("{} is {}: must be {}", field.name, value, field.must_be());
  });
  QUIRE_CHECKED(std::move(status));
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab_size)
      return request_error("logit_bias names token {}, but the vocabulary has ids 0 to {}", id, vocab_size - 1);
    if (!(bias >= -kMostBias && bias <= kMostBias))
      return request_error("logit_bias of token {} is {}: must be between {} and {}", id, bias, -kMostBias, kMostBias);
  }
  if (logprobs < -1 || logprobs > vocab_size)
    return request_error("logprobs is {}: must be between 0 and the vocabulary's size of {} (or -1 for none)", logprobs,
                         vocab_size);
  return {};
}

}  // namespace quire
