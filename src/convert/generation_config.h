// generation_config.json: what the makers of a model recommend for sampling, under Hugging Face's names and GGUF's.
#pragma once

#include <string_view>

namespace quire::convert {

struct SamplingKey {
  std::string_view hf, gguf;  // of generation_config.json; of the file's metadata
};

inline constexpr SamplingKey kTemperatureKey{"temperature", "general.sampling.temp"};
inline constexpr SamplingKey kTopPKey{"top_p", "general.sampling.top_p"};
inline constexpr SamplingKey kMinPKey{"min_p", "general.sampling.min_p"};
inline constexpr SamplingKey kRepetitionPenaltyKey{"repetition_penalty", "general.sampling.penalty_repeat"};
inline constexpr SamplingKey kTopKKey{"top_k", "general.sampling.top_k"};

}  // namespace quire::convert
