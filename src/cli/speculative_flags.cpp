#include "cli/speculative_flags.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "core/escape.h"

namespace quire::cli {
namespace {

using Json = nlohmann::json;

constexpr char kConfig[] = "--speculative-config";

std::optional<Speculative> mode_of_method(std::string_view method) {
  if (method == "mtp" || method == "qwen3_next_mtp" || method == "qwen3_5_mtp") return Speculative::kMtp;
  if (method == "ngram" || method == "suffix") return Speculative::kLookup;
  return std::nullopt;
}

Status read_key(const std::string& key, const Json& value, SpeculativeOptions& to) {
  if (key == "method") {
    const auto mode = value.is_string() ? mode_of_method(value.get<std::string>()) : std::nullopt;
    if (!mode)
      return request_error("{}: method is {}: must be mtp, qwen3_next_mtp, qwen3_5_mtp, ngram or suffix", kConfig,
                           escaped(value.dump()));
    to.mode = *mode;
    return {};
  }
  if (key == "num_speculative_tokens") {
    const bool fits = value.is_number_integer() && value >= 1 && value <= kMostDrafts;
    if (!fits)
      return request_error("{}: num_speculative_tokens is {}: must be between 1 and {}", kConfig, escaped(value.dump()),
                           kMostDrafts);
    to.tokens = value.get<int32_t>();
    return {};
  }
  // Of vLLM's lookup. Here the longest one that occurred before is taken.
  if (key == "prompt_lookup_min" || key == "prompt_lookup_max") return {};
  return request_error(
      "{}: {} is not known here; there are method, num_speculative_tokens, prompt_lookup_min and prompt_lookup_max",
      kConfig, escaped(key));
}

Status read_config(const std::string& text, SpeculativeOptions& to) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return request_error("{}: must be a JSON object, such as {{\"method\": \"mtp\"}}", kConfig);
  for (const auto& [key, value] : json.items()) QUIRE_CHECKED(read_key(key, value, to));
  return {};
}

}  // namespace

void SpeculativeFlags::add(CLI::App& app) {
  mode_ = app.add_option("--speculative", mode,
                         "Drafts of the next tokens that are verified beside a generated one: auto (whatever pays), "
                         "off, mtp (by the model's block for multi-token prediction), or lookup (what followed the "
                         "same tokens before). The output does not depend on it")
              ->capture_default_str();
  tokens_ = app.add_option("--speculative-tokens", tokens, "Drafts of a sequence in a step at most, 1 to 7")
                ->capture_default_str();
  app.add_option(kConfig, config, "The same as vLLM takes it: {\"method\": \"mtp\", \"num_speculative_tokens\": 3}")
      ->type_name("JSON");
}

Result<SpeculativeOptions> SpeculativeFlags::parsed() const {
  SpeculativeOptions o{.mode = Speculative::kAuto, .tokens = tokens};
  if (tokens < 1 || tokens > kMostDrafts)
    return request_error("--speculative-tokens {}: must be between 1 and {}", tokens, kMostDrafts);
  if (!config.empty()) {
    if (mode_->count() + tokens_->count() > 0)
      return request_error("{} says what --speculative and --speculative-tokens do: give the one or the others",
                           kConfig);
    QUIRE_CHECKED(read_config(config, o));
    return o;
  }
  if (mode == "off") {
    o.mode = Speculative::kOff;
  } else if (mode == "mtp") {
    o.mode = Speculative::kMtp;
  } else if (mode == "lookup") {
    o.mode = Speculative::kLookup;
  } else if (mode != "auto") {
    return request_error("--speculative {}: must be auto, off, mtp or lookup", mode);
  }
  return o;
}

}  // namespace quire::cli
