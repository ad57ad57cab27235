// --speculative, --speculative-tokens and --speculative-config: who drafts tokens, and how many at most.
#pragma once

#include <string>

#include "command/flags.h"
#include "engine/speculative_options.h"

namespace quire::cli {

inline constexpr char kMtpFileHelp[] =
    "GGUF file with the model's block for multi-token prediction, where the model's own file has none, or in its place";

struct SpeculativeFlags {
  Speculative method = Speculative::kAuto;
  int tokens = kMostDrafts;
  std::string config;  // JSON as vLLM takes it; empty: none

  void add(Flags& flags);
  // A config that cannot be, or stands beside the flags that it would overrule, is a request error.
  Result<SpeculativeOptions> parsed() const;

 private:
  const Flag *method_ = nullptr, *tokens_ = nullptr;
};

// vLLM's object: "method" (mtp, qwen3_next_mtp, ngram or suffix; the last two are lookup here) and
// "num_speculative_tokens". Another key or method is an error that names it.
Result<SpeculativeOptions> parse_speculative_config(const std::string& json);

}  // namespace quire::cli
