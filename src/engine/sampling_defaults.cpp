#include "engine/sampling_defaults.h"

#include <algorithm>
#include <filesystem>

#include "convert/json.h"

namespace quire {
namespace {

// What is published of a family's chat models. Their model cards on huggingface.co, unless another source is named.
struct Said {
  std::string_view name;  // of a row; empty: nothing
  double value = 0;
};
struct FamilySampling {
  std::string_view architectures;  // between blanks
  Said plain[6], thinking[6];
};

// Of these some models have other numbers, which their files can say (general.sampling.*).
constexpr FamilySampling kFamilies[] = {
    // Qwen3.5 and Qwen3.6, general tasks.
    {"qwen35 qwen35moe",
     {{"temperature", 0.7}, {"top_p", 0.8}, {"min_p", 0.0}, {"presence_penalty", 1.5}, {"top_k", 20}},
     {{"temperature", 1.0}, {"top_p", 0.95}, {"min_p", 0.0}, {"presence_penalty", 1.5}, {"top_k", 20}}},
    // Qwen3 and Qwen3-Next, "Best Practices"; Qwen3-VL, "model.generate()" of its documentation.
    {"qwen3 qwen3moe qwen3next qwen3vl qwen3vlmoe",
     {{"temperature", 0.7}, {"top_p", 0.8}, {"min_p", 0.0}, {"top_k", 20}},
     {{"temperature", 0.6}, {"top_p", 0.95}, {"min_p", 0.0}, {"top_k", 20}}},
    // generation_config.json of Qwen2.5-Instruct.
    {"qwen2",
     {{"temperature", 0.7}, {"top_p", 0.8}, {"repetition_penalty", 1.05}, {"top_k", 20}},
     {{"temperature", 0.7}, {"top_p", 0.8}, {"repetition_penalty", 1.05}, {"top_k", 20}}},
    // generation_config.json of Llama 2 and 3 Instruct.
    {"llama", {{"temperature", 0.6}, {"top_p", 0.9}}, {{"temperature", 0.6}, {"top_p", 0.9}}},
    // Gemma 3 (generation_config.json, and its team's settings for local programs), Gemma 4.
    {"gemma3 gemma4",
     {{"temperature", 1.0}, {"top_p", 0.95}, {"top_k", 64}},
     {{"temperature", 1.0}, {"top_p", 0.95}, {"top_k", 64}}},
    // The repository openai/gpt-oss, "Recommended Sampling Parameters".
    {"gpt-oss", {{"temperature", 1.0}, {"top_p", 1.0}}, {{"temperature", 1.0}, {"top_p", 1.0}}},
    // GLM-Z1-0414, "Usage Guidelines".
    {"glm4",
     {{"temperature", 0.6}, {"top_p", 0.95}, {"top_k", 40}},
     {{"temperature", 0.6}, {"top_p", 0.95}, {"top_k", 40}}},
    // GLM-4.6 and 4.7, general tasks.
    {"glm4moe", {{"temperature", 1.0}, {"top_p", 0.95}}, {{"temperature", 1.0}, {"top_p", 0.95}}},
};

bool names(std::string_view list, std::string_view word) {
  const std::string padded = fmt::format(" {} ", list);
  return !word.empty() && word.find(' ') == word.npos && padded.find(fmt::format(" {} ", word)) != std::string::npos;
}

constexpr bool is_row(std::string_view name) {
  return std::ranges::any_of(kSamplingFields, [&](const SamplingField& field) { return field.name == name; });
}
constexpr bool are_rows(const Said (&all)[6]) {
  return std::ranges::all_of(all, [](const Said& said) { return said.name.empty() || is_row(said.name); });
}
static_assert(std::ranges::all_of(kFamilies,
                                  [](const FamilySampling& f) { return are_rows(f.plain) && are_rows(f.thinking); }));

SamplingDefaults defaults_of(const Said (&all)[6]) {
  SamplingDefaults d;
  for (size_t i = 0; i < d.values.size(); ++i)
    for (const Said& said : all)
      if (said.name == kSamplingFields[i].name) d.values[i] = said.value;
  return d;
}

// Files say that no token is cut off with 0, and some with -1.
double count_of(const SamplingField& field, double n) {
  return std::clamp(n, field.low, field.high);
}

}  // namespace

void SamplingDefaults::apply(SamplingParams& to) const {
  each(to, [](const SamplingField&, auto value, auto& member) { member = value; });
}

std::string SamplingDefaults::text() const {
  std::string list;
  SamplingParams any;
  each(any, [&](const SamplingField& field, auto value, auto&) {
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", field.name, value);
  });
  return list;
}

Result<SamplingDefaults> recommended_sampling(const gguf::File& file) {
  SamplingDefaults d;
  for (size_t i = 0; i < d.values.size(); ++i) {
    const SamplingField& field = kSamplingFields[i];
    const std::string key(field.gguf);
    if (key.empty() || !file.has(key)) continue;
    if (field.is_integer()) {
      QUIRE_TRY(const int64_t n, file.get_i64(key));
      d.values[i] = count_of(field, static_cast<double>(n));
    } else {
      QUIRE_TRY(d.values[i], file.get_f32(key));
    }
  }
  return d;
}

SamplingDefaults family_sampling(std::string_view architecture, bool thinks) {
  for (const FamilySampling& f : kFamilies)
    if (names(f.architectures, architecture)) return defaults_of(thinks ? f.thinking : f.plain);
  return {};
}

Result<SamplingDefaults> read_generation_config(const std::string& path) {
  std::error_code unknown;
  const std::string file = std::filesystem::is_directory(path, unknown)
                               ? (std::filesystem::path(path) / "generation_config.json").string()
                               : path;
  QUIRE_TRY(const nlohmann::json config, convert::read_json_object(file));
  SamplingDefaults d;
  const nlohmann::json* const sample = convert::find_member(config, "do_sample");
  if (sample != nullptr && *sample == nlohmann::json(false)) return d;
  for (size_t i = 0; i < d.values.size(); ++i) {
    const SamplingField& field = kSamplingFields[i];
    const nlohmann::json* const v = field.gguf.empty() ? nullptr : convert::find_member(config, field.name);
    if (v == nullptr) continue;
    if (field.is_integer() ? !v->is_number_integer() : !v->is_number())
      return request_error("{}: '{}' is not {}", file, field.name, field.is_integer() ? "an integer" : "a number");
    d.values[i] = field.is_integer() ? count_of(field, v->get<double>()) : double{static_cast<float>(v->get<double>())};
  }
  return d;
}

}  // namespace quire
