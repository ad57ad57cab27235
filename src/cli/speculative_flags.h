// The flags that say how drafts are made.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "core/result.h"
#include "engine/speculative_options.h"

namespace quire::cli {

// --speculative, --speculative-tokens, --speculative-config: none of them changes a text.
struct SpeculativeFlags {
  std::string mode = "auto";
  int32_t tokens = kMostDrafts;
  std::string config;  // vLLM's, as JSON

  void add(CLI::App& app);
  // An error names the flag, and of a configuration the key.
  Result<SpeculativeOptions> parsed() const;

 private:
  const CLI::Option *mode_ = nullptr, *tokens_ = nullptr;
};

}  // namespace quire::cli
