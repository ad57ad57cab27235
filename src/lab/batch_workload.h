// What `quire bench-batch` and `quire profile` run: many prompts at once, then all of their sequences generating side
// by side. Through the engine's own interface, as any caller would.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "engine/engine.h"

namespace quire::cli {

struct BatchShape {
  int32_t sequences = 1;
  int64_t prompt = 0;    // tokens of each prompt
  int64_t generate = 0;  // tokens of each sequence after its first

  int64_t context() const { return prompt + generate + 1; }
};

// One pass of it, as listeners heard it.
struct BatchRun {
  double prefill_seconds = 0;      // until every sequence has its first token
  double first_token_seconds = 0;  // mean over the sequences
  double decode_seconds = 0;       // from then on until the first sequence ends
  int64_t decode_steps = 0;        // of the first sequence that ends, in that time
  int64_t decode_tokens = 0;       // of all sequences, likewise
  double tokens_per_step = 1;      // of a sequence
  double total_seconds = 0;        // until the last one ends
  double step_host_seconds = 0;    // the engine's own work for one of those steps

  double prefill_rate(const BatchShape& s) const {
    return static_cast<double>(s.sequences * s.prompt) / prefill_seconds;
  }
  double decode_rate() const { return static_cast<double>(decode_tokens) / decode_seconds; }
  double total_rate(const BatchShape& s) const {
    return static_cast<double>(s.sequences * s.context()) / total_seconds;
  }
  double step_seconds(const BatchShape& s) const {
    return decode_seconds * tokens_per_step * s.sequences / static_cast<double>(decode_tokens);
  }
};

// An engine's options for the widest and longest of such runs, and no more memory than that takes. `batch_tokens` 0:
// what suits the device.
EngineOptions options_for(std::span<const BatchShape> shapes, EngineOptions options, int32_t batch_tokens);

class BatchWorkload {
 public:
  BatchWorkload(Engine& engine, uint64_t seed) : engine_(engine), random_(seed) {}
  // Called on the stepping thread between steps: when all sequences have begun, and when the first has ended.
  struct Phases {
    std::function<void()> all_begun = [] {}, first_ended = [] {};
  };
  // Prompts are random and never the same twice. Greedy; end-of-generation tokens are ordinary ones.
  Result<BatchRun> run(const BatchShape& shape, const Phases& phases);
  Result<BatchRun> run(const BatchShape& shape) { return run(shape, Phases()); }

 private:
  Request request(const BatchShape& shape);

  Engine& engine_;
  std::mt19937_64 random_;
};

double median(std::vector<double> values);

}  // namespace quire::cli
