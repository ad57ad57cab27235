// Where the time of a model's steps on a CPU goes, operator by operator, measured.
#pragma once

#include <chrono>
#include <memory>

#include "eval/scorer.h"
#include "lab/snapshot/record.h"
#include "ops/launches.h"

namespace quire::cli::snapshot {

// Adds up the time of each operator that the model calls; what these call is part of them. Writing down what a call
// looks like, which an observer makes the operators do, comes before a call begins and does not count.
class OperatorClock final : public LaunchObserver {
 public:
  void begin(const Launch& launch) override;
  void end() override;
  void refused(const Error&) override {}

  // In the order of their first calls, all of this phase. Starts anew.
  std::vector<Bucket> take(const std::string& phase);

 private:
  std::vector<Bucket> buckets_;
  size_t open_ = 0;  // the operator that is running
  int depth_ = 0;
  std::chrono::steady_clock::time_point start_;
};

// A prompt, and tokens that are generated one by one, with the kernels that an engine for few sequences takes.
class OperatorProfile {
 public:
  struct Shape {
    int64_t prompt = 256, generated = 24;
  };
  static Result<std::unique_ptr<OperatorProfile>> create(const std::shared_ptr<const LoadedModel>& model,
                                                         const ScorerOptions& options, Shape shape);

  // One pass of both: "prompt" and "decode" buckets.
  Result<std::vector<Bucket>> run();

 private:
  OperatorProfile(Shape shape, std::vector<TokenId> tokens) : shape_(shape), tokens_(std::move(tokens)) {}

  Shape shape_;
  std::vector<TokenId> tokens_;
  OperatorClock clock_;
  std::unique_ptr<Scorer> prompt_, generated_;
};

}  // namespace quire::cli::snapshot
