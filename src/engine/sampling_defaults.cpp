#include "engine/sampling_defaults.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "convert/generation_config.h"
#include "convert/json.h"

namespace quire {
namespace {

using convert::SamplingKey;

// Calls each(key, member) for every number that may be recommended but the top k, which is an integer.
template <class Defaults, class Each>
Status for_each_number(Defaults& d, Each each) {
  QUIRE_CHECKED(each(convert::kTemperatureKey, d.temperature));
  QUIRE_CHECKED(each(convert::kTopPKey, d.top_p));
  QUIRE_CHECKED(each(convert::kMinPKey, d.min_p));
  return each(convert::kRepetitionPenaltyKey, d.repetition_penalty);
}

// What is published of a family's chat models. Their model cards on huggingface.co, unless another source is named.
struct FamilySampling {
  std::string_view architectures;  // between blanks
  SamplingDefaults plain, thinking;
};

// Of these some models have other numbers, which their files can say (general.sampling.*).
const FamilySampling kFamilies[] = {
    // Qwen3.5 and Qwen3.6, general tasks.
    {"qwen35 qwen35moe",
     {.temperature = 0.7f, .top_p = 0.8f, .min_p = 0.0f, .presence_penalty = 1.5f, .top_k = 20},
     {.temperature = 1.0f, .top_p = 0.95f, .min_p = 0.0f, .presence_penalty = 1.5f, .top_k = 20}},
    // Qwen3 and Qwen3-Next, "Best Practices".
    {"qwen3 qwen3moe qwen3next",
     {.temperature = 0.7f, .top_p = 0.8f, .min_p = 0.0f, .top_k = 20},
     {.temperature = 0.6f, .top_p = 0.95f, .min_p = 0.0f, .top_k = 20}},
    // generation_config.json of Qwen2.5-Instruct.
    {"qwen2",
     {.temperature = 0.7f, .top_p = 0.8f, .repetition_penalty = 1.05f, .top_k = 20},
     {.temperature = 0.7f, .top_p = 0.8f, .repetition_penalty = 1.05f, .top_k = 20}},
    // generation_config.json of Llama 2 and 3 Instruct.
    {"llama", {.temperature = 0.6f, .top_p = 0.9f}, {.temperature = 0.6f, .top_p = 0.9f}},
    // Gemma 3 (generation_config.json, and its team's settings for local programs), Gemma 4.
    {"gemma3 gemma4",
     {.temperature = 1.0f, .top_p = 0.95f, .top_k = 64},
     {.temperature = 1.0f, .top_p = 0.95f, .top_k = 64}},
    // The repository openai/gpt-oss, "Recommended Sampling Parameters".
    {"gpt-oss", {.temperature = 1.0f, .top_p = 1.0f}, {.temperature = 1.0f, .top_p = 1.0f}},
    // GLM-Z1-0414, "Usage Guidelines".
    {"glm4", {.temperature = 0.6f, .top_p = 0.95f, .top_k = 40}, {.temperature = 0.6f, .top_p = 0.95f, .top_k = 40}},
    // GLM-4.6 and 4.7, general tasks.
    {"glm4moe", {.temperature = 1.0f, .top_p = 0.95f}, {.temperature = 1.0f, .top_p = 0.95f}},
};

bool names(std::string_view list, std::string_view word) {
  const std::string padded = fmt::format(" {} ", list);
  return !word.empty() && word.find(' ') == word.npos && padded.find(fmt::format(" {} ", word)) != std::string::npos;
}

// Files say that no token is cut off with 0, and some with -1.
int32_t to_top_k(int64_t k) {
  return static_cast<int32_t>(std::clamp<int64_t>(k, 0, INT32_MAX));
}

}  // namespace

void SamplingDefaults::apply(SamplingParams& to) const {
  if (temperature) to.temperature = *temperature;
  if (top_p) to.top_p = *top_p;
  if (min_p) to.min_p = *min_p;
  if (repetition_penalty) to.repetition_penalty = *repetition_penalty;
  if (presence_penalty) to.presence_penalty = *presence_penalty;
  if (top_k) to.top_k = *top_k;
}

std::string SamplingDefaults::text() const {
  std::string list;
  const auto add = [&](const SamplingKey& key, const auto& value) {
    if (value) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", key.hf, *value);
    return Status();
  };
  (void)for_each_number(*this, add);
  (void)add(SamplingKey{"presence_penalty", ""}, presence_penalty);  // no file says it
  (void)add(convert::kTopKKey, top_k);
  return list;
}

Result<SamplingDefaults> recommended_sampling(const gguf::File& file) {
  SamplingDefaults d;
  QUIRE_CHECKED(for_each_number(d, [&](const SamplingKey& key, std::optional<float>& to) -> Status {
    if (!file.has(key.gguf)) return {};
    QUIRE_TRY(to, file.get_f32(key.gguf));
    return {};
  }));
  if (file.has(convert::kTopKKey.gguf)) {
    QUIRE_TRY(const int64_t k, file.get_i64(convert::kTopKKey.gguf));
    d.top_k = to_top_k(k);
  }
  return d;
}

SamplingDefaults family_sampling(std::string_view architecture, bool thinks) {
  for (const FamilySampling& f : kFamilies)
    if (names(f.architectures, architecture)) return thinks ? f.thinking : f.plain;
  return {};
}

Result<SamplingDefaults> read_generation_config(const std::string& path) {
  std::error_code unknown;
  const std::string file = std::filesystem::is_directory(path, unknown)
                               ? (std::filesystem::path(path) / "generation_config.json").string()
                               : path;
  QUIRE_TRY(const nlohmann::json config, convert::read_json_object(file));
  const auto number = [&](const SamplingKey& key) { return convert::find_member(config, key.hf); };
  const auto wrong = [&](const SamplingKey& key, const char* kind) {
    return request_error("{}: '{}' is not {}", file, key.hf, kind);
  };
  SamplingDefaults d;
  const nlohmann::json* const sample = convert::find_member(config, "do_sample");
  if (sample != nullptr && *sample == nlohmann::json(false)) return d;
  QUIRE_CHECKED(for_each_number(d, [&](const SamplingKey& key, std::optional<float>& to) -> Status {
    const nlohmann::json* const v = number(key);
    if (v == nullptr) return {};
    if (!v->is_number()) return wrong(key, "a number");
    to = static_cast<float>(v->get<double>());
    return {};
  }));
  if (const nlohmann::json* const k = number(convert::kTopKKey); k != nullptr) {
    if (!k->is_number_integer()) return wrong(convert::kTopKKey, "an integer");
    d.top_k = to_top_k(k->is_number_unsigned() && k->get<uint64_t>() > INT32_MAX ? INT32_MAX : k->get<int64_t>());
  }
  return d;
}

}  // namespace quire
