// --speculative, --speculative-tokens and --speculative-config: who drafts tokens, and how many at most.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "core/result.h"
#include "engine/speculative_options.h"

namespace quire::cli {

inline constexpr char kMtpFileHelp[] =
    "GGUF file with the model's block for multi-token prediction, where the model's own file has none, or in its place";

struct SpeculativeFlags {
  std::string method = "auto";
  int tokens = kMostDrafts;
  std::string config;  // JSON as vLLM takes it; empty: none

  void add(CLI::App& app);
  // Unknown names, numbers out of range, and a config beside the flags that it would overrule are request errors.
  Result<SpeculativeOptions> parsed() const;

 private:
  const CLI::Option *method_ = nullptr, *tokens_ = nullptr;
};

// vLLM's object: "method" (mtp, qwen3_next_mtp, ngram or suffix; the last two are lookup here) and
// "num_speculative_tokens". Another key or method is an error that names it.
Result<SpeculativeOptions> parse_speculative_config(const std::string& json);

}  // namespace quire::cli
