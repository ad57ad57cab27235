// The requests of a measurement: made up from lengths and a seed, or read from a trace.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire::cli::load {

// A length in tokens: "128", "uniform:64:256", "normal:128:32" (mean and standard deviation), "exponential:128".
struct LengthSpec {
  enum class Kind { kFixed, kUniform, kNormal, kExponential } kind = Kind::kFixed;
  double a = 128, b = 0;

  static Result<LengthSpec> parse(std::string_view text);
  int64_t draw(std::mt19937_64& random) const;  // at least 1
};

struct WorkItem {
  std::string prompt;
  int64_t max_tokens = 0;
  double at = -1;  // seconds after the start at which a trace sends it; negative: when there is a client
};

struct WorkloadOptions {
  LengthSpec prompt_tokens{.a = 256}, output_tokens{.a = 128};
  int64_t shared_prefix = 0;  // of the prompt's tokens: the same for all requests of a group
  int64_t prefixes = 1;       // how many groups
  uint64_t seed = 0;
};

// Prompts are common English words, so that a word is a token, more or less, in any vocabulary; what a server counted
// is in the results. No two prompts are the same beyond the shared prefix.
std::vector<WorkItem> make_workload(const WorkloadOptions& options, size_t requests);

// One JSON object a line: {"prompt": text} or {"prompt_tokens": n}, {"output_tokens": n}, and perhaps {"at": seconds}.
Result<std::vector<WorkItem>> parse_trace(std::string_view text, const WorkloadOptions& options);

}  // namespace quire::cli::load
