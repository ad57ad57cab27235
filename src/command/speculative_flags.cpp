#include "command/speculative_flags.h"

#include <nlohmann/json.hpp>

namespace quire::cli {
namespace {

constexpr char kFlag[] = "--speculative-config";
constexpr Named<Speculative> kMethods[] = {{"auto", Speculative::kAuto},
                                           {"off", Speculative::kOff},
                                           {"mtp", Speculative::kMtp},
                                           {"lookup", Speculative::kLookup}};

Result<int32_t> checked_tokens(const char* what, int64_t n) {
  if (n < 1 || n > kMostDrafts) return request_error("{} is {}, but must be between 1 and {}", what, n, kMostDrafts);
  return static_cast<int32_t>(n);
}

// A value as it was given, for messages; what is no UTF-8 is replaced.
std::string shown(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void SpeculativeFlags::add(Flags& flags) {
  method_ = &flags.add("--speculative", chosen(&method, kMethods),
                       "Who drafts tokens that the model then checks several at a time, where that is faster; texts "
                       "stay the same. auto: all there are; off: nobody; mtp: the model's own block; lookup: the text "
                       "so far");
  tokens_ = &flags.add("--speculative-tokens", &tokens, between(1, kMostDrafts),
                       "Most drafts of a sequence in a step, 1 to 7");
  flags.add(kFlag, &config,
            "Both in one as vLLM takes them: {\"method\": \"mtp\", \"num_speculative_tokens\": 3}; methods mtp, "
            "qwen3_next_mtp, ngram and suffix (the last two are lookup)");
}

Result<SpeculativeOptions> SpeculativeFlags::parsed() const {
  if (config.empty()) return SpeculativeOptions{.mode = method, .tokens = tokens, .hook = {}, .simulated = {}};
  for (const Flag* flag : {method_, tokens_})
    if (flag != nullptr && flag->given()) return request_error("{} beside {}: give one of them", kFlag, flag->name());
  return parse_speculative_config(config);
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
        options.mode = Speculative::kMtp;
      else if (value == "ngram" || value == "suffix")
        options.mode = Speculative::kLookup;
      else
        return request_error("{}: the method {} is none of mtp, qwen3_next_mtp, ngram and suffix", kFlag, shown(value));
    } else if (key == "num_speculative_tokens") {
      if (!value.is_number_integer())
        return request_error("{}: num_speculative_tokens is {}, but must be a whole number", kFlag, shown(value));
      // A number beyond 64 bits signed is out of the range in any case.
      const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX;
      QUIRE_TRY(options.tokens, checked_tokens("--speculative-config: num_speculative_tokens",
                                               huge ? INT32_MAX : value.get<int64_t>()));
    } else if (key != "prompt_lookup_min" && key != "prompt_lookup_max") {  // here the longest match is taken
      return request_error("{}: the key {} is none of method and num_speculative_tokens", kFlag, shown(key));
    }
  }
  if (!has_method) return request_error("{}: it needs a method: mtp, qwen3_next_mtp, ngram or suffix", kFlag);
  return options;
}

}  // namespace quire::cli
