#include "cli/speculative_flags.h"

#include <nlohmann/json.hpp>

namespace quire::cli {
namespace {

constexpr char kFlag[] = "--speculative-config";

Result<int> checked_tokens(const char* what, int64_t n) {
  if (n < 1 || n > kMostDrafts) return request_error("{} is {}, but must be between 1 and {}", what, n, kMostDrafts);
  return static_cast<int>(n);
}

// A value as it was given, for messages; what is no UTF-8 is replaced.
std::string shown(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void SpeculativeFlags::add(CLI::App& app) {
  method_ =
      app.add_option("--speculative", method,
                     "Who drafts tokens that the model then checks several at a time, where that is faster; texts "
                     "stay the same. auto: all there are; off: nobody; mtp: the model's own block; lookup: the text "
                     "so far")
          ->capture_default_str()
          ->option_text("auto|off|mtp|lookup");
  tokens_ = app.add_option("--speculative-tokens", tokens, "Most drafts of a sequence in a step, 1 to 7")
                ->capture_default_str();
  app.add_option(kFlag, config,
                 "Both in one as vLLM takes them: {\"method\": \"mtp\", \"num_speculative_tokens\": 3}; methods mtp, "
                 "qwen3_next_mtp, ngram and suffix (the last two are lookup)")
      ->option_text("JSON");
}

Result<SpeculativeOptions> SpeculativeFlags::parsed() const {
  if (!config.empty()) {
    for (const CLI::Option* o : {method_, tokens_})
      if (o != nullptr && o->count() > 0) return request_error("{} beside {}: give one of them", kFlag, o->get_name());
    return parse_speculative_config(config);
  }
  SpeculativeOptions options;
  if (method == "off")
    options.method = SpeculativeMethod::kOff;
  else if (method == "mtp")
    options.method = SpeculativeMethod::kMtp;
  else if (method == "lookup")
    options.method = SpeculativeMethod::kLookup;
  else if (method != "auto")
    return request_error("--speculative {}: must be auto, off, mtp or lookup", method);
  QUIRE_TRY(options.most_drafts, checked_tokens("--speculative-tokens", tokens));
  return options;
}

Result<SpeculativeOptions> parse_speculative_config(const std::string& json) {
  const nlohmann::json parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object())
    return request_error("{}: not a JSON object such as {{\"method\": \"mtp\", \"num_speculative_tokens\": 3}}", kFlag);
  SpeculativeOptions options;
  bool has_method = false;
  for (const auto& [key, value] : parsed.items()) {
    if (key == "method") {
      has_method = true;
      if (value == "mtp" || value == "qwen3_next_mtp")
        options.method = SpeculativeMethod::kMtp;
      else if (value == "ngram" || value == "suffix")
        options.method = SpeculativeMethod::kLookup;
      else
        return request_error("{}: the method {} is none of mtp, qwen3_next_mtp, ngram and suffix", kFlag, shown(value));
    } else if (key == "num_speculative_tokens") {
      if (!value.is_number_integer())
        return request_error("{}: num_speculative_tokens is {}, but must be a whole number", kFlag, shown(value));
      // A number beyond 64 bits signed is out of the range in any case.
      const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX;
      QUIRE_TRY(options.most_drafts, checked_tokens("--speculative-config: num_speculative_tokens",
                                                    huge ? INT32_MAX : value.get<int64_t>()));
    } else {
      return request_error("{}: the key {} is none of method and num_speculative_tokens", kFlag, shown(key));
    }
  }
  if (!has_method) return request_error("{}: it needs a method: mtp, qwen3_next_mtp, ngram or suffix", kFlag);
  return options;
}

}  // namespace quire::cli
