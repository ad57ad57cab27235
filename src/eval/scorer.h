// Logits of a given text: for perplexity and for comparing models.
#pragma once

#include <functional>
#include <memory>

#include "engine/cuda_logits.h"
#include "engine/loaded_model.h"
#include "engine/options.h"

namespace quire {

struct ScorerOptions {
  Device device = Device::kCpu;
  int gpu = 0;           // which one
  int threads = 0;       // 0: all CPUs
  int64_t window = 512;  // longest sequence
  KernelChoice kernels;
  KvCacheType kv_cache = KvCacheType::kAuto;                 // what keys and values are kept in
  PromptActivations activations = PromptActivations::kBf16;  // of tokens that are a prompt's
  // Computes every token as an engine for few sequences computes a generated one (kFewSequences in engine.h).
  bool generated = false;
  InputObserver* observer = nullptr;   // not null: is shown what weights are multiplied by
  LaunchObserver* launches = nullptr;  // not null: on a CPU, is shown every call and when it begins and ends
};

// Runs one sequence at a time from an empty state. Positions are prefilled in chunks of 64-token multiples,
// so that the logits of a large vocabulary fit in memory; the chunking does not change them. Not for several
// threads at once.
class Scorer {
 public:
  static Result<std::unique_ptr<Scorer>> create(std::shared_ptr<const LoadedModel> model, ScorerOptions options);

  // Calls `each(position, logits)` for every position in ascending order; logits [V] predict the token after
  // it.
  using Each = std::function<void(int64_t position, std::span<const float> logits)>;
  Status run(std::span<const TokenId> tokens, const Each& each);

  // The same, one chunk after another, for callers that hold two models against each other: restart(), then
  // extend() with chunk_tokens() tokens at a time, the last call with what is left; as generated tokens, with any
  // number up to that. Returns their logits [tokens, V], valid until the next call.
  int64_t chunk_tokens() const { return chunk_; }
  void restart() { position_ = anchor_ = 0; }
  Result<std::span<const float>> extend(std::span<const TokenId> tokens);

  // Sum of -log p(token i | tokens before it) for i = 1 ... n-1, natural logarithm, in float64.
  Result<double> negative_log_likelihood(std::span<const TokenId> tokens);

  int64_t workspace_bytes() const { return workspace_.high_water(); }
  const LoadedModel& model() const { return *model_; }
  // What became of ScorerOptions::kernels so far.
  std::span<const ForcedCount> forced_kernels() const { return forced_.all(); }

 private:
  Scorer(std::shared_ptr<const LoadedModel> model, ScorerOptions options, CacheStorage storage);
  // The one sequence's next `count` tokens, as a step.
  StepShape step(int64_t count);
  // Their logits, and the caches after them.
  Status forward(std::span<const TokenId> tokens, float* logits);

  std::shared_ptr<const LoadedModel> model_;
  ScorerOptions options_;
  ForcedCounts forced_;
  ThreadPool pool_;
  Workspace workspace_;
  CacheStorage storage_;
  int64_t chunk_;  // most tokens of one forward pass
  StepLayout layout_;
  std::vector<std::byte> step_memory_;
  int64_t anchor_ = 0;    // position after which the recurrent state stands
  int64_t position_ = 0;  // tokens of the sequence so far
  std::vector<float> logits_;
  std::unique_ptr<CudaLogits> gpu_;  // null: computed here
};

// log softmax(logits)[token], in float64.
double log_probability(std::span<const float> logits, TokenId token);

}  // namespace quire
