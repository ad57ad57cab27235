// Which kernel takes which call of a step, and what the calls must move and compute: collected, and printed.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ops/launches.h"

namespace quire::cli {

// What a machine does in a second; 0: not known.
struct MachineLimits {
  double bandwidth = 0;  // bytes
  double flops = 0;

  // The least time in which this can be done; nothing where neither limit is known.
  std::optional<double> seconds(const Traffic& t) const;
};

// Calls of one operator that have the same arguments and kernel.
struct ExplainedCalls {
  Launch launch;  // of one of them
  int depth = 0;  // 0: called by the model; else by the kernel of the calls before that are less deep
  int64_t calls = 0;
};

class ExplainedStep final : public LaunchObserver {
 public:
  void begin(const Launch& launch) override;
  void end() override { --depth_; }
  void refused(const Error& error) override;

  const std::vector<ExplainedCalls>& calls() const { return calls_; }  // in the order of the first call
  const std::optional<Error>& refusal() const { return refusal_; }     // the first one
  // Of the operators that the model calls: what these call is part of them.
  Traffic total() const;

 private:
  std::vector<ExplainedCalls> calls_;
  std::map<std::string, size_t> known_;
  std::vector<std::string> path_;  // the calls that are open
  int depth_ = 0;
  std::optional<Error> refusal_;
};

// Why this kernel, in words: "first choice", "forced", "before it: amx (not for this machine)".
std::string why(const Launch& launch);

std::string explained_table(const ExplainedStep& step, const MachineLimits& limits);
nlohmann::ordered_json explained_json(const ExplainedStep& step, const MachineLimits& limits);

}  // namespace quire::cli
