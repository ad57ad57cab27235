// The engine: submit requests, run steps, receive tokens. A small API to embed:
//
//   auto model = load_model("m.gguf");
//   auto engine = Engine::create(*model, {});
//   (*engine)->submit(request, [](const TokenEvent& e) { ... });
//   while ((*engine)->busy()) (*engine)->step();
//
// The text a request gets depends on its prompt, parameters and seed only, never on what else runs, on how
// its prompt is cut into steps or on the number of threads.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "cache/block_pool.h"
#include "cache/block_table.h"
#include "cache/storage.h"
#include "core/cpu.h"
#include "engine/loaded_model.h"
#include "engine/request.h"
#include "engine/scheduler.h"

namespace quire {

// An engine for so few sequences computes generated tokens with kernels of their own (integers, or vectors
// for BF16 weights), which are faster for one or two tokens and slower for more. So its texts may differ from
// those of an engine for many, as they may between machines (docs/numerics.md).
inline constexpr int32_t kFewSequences = 2;

// Whether this CPU has kernels that read repacked weights.
inline bool repacking_helps() {
  return cpu_features().avx512_bf16;
}

struct EngineOptions {
  Device device = Device::kCpu;
  int threads = 0;                 // 0: all CPUs this process may use
  int64_t context = 0;             // longest sequence, prompt and output; 0: the model's trained context
  int32_t max_sequences = 16;      // running at once; others wait. Up to kFewSequences: see there
  int32_t max_batch_tokens = 512;  // rows of a step: the largest prefill chunk
  int64_t kv_tokens = 0;  // size of the KV pool; 0: max(context, min(max_sequences * context, 64k)) tokens
  // For up to kFewSequences: copy weights to generate faster, if memory allows. The texts are the same.
  bool repack = true;
  uint64_t shuffle_blocks = 0;  // not 0: hand out KV blocks in this random order (tests)
  KernelChoice kernels;
  LayerProbe probe;  // not empty: sees every step's intermediates
};

struct StepStats {
  int64_t steps = 0, prompt_tokens = 0, decode_tokens = 0;
  double prompt_seconds = 0.0, decode_seconds = 0.0;  // a mixed step's time is shared by rows
};

struct MemoryUse {
  int64_t mapped = 0;        // weights, in the page cache, shared with other processes
  int64_t converted = 0;     // small vectors converted to float32
  int64_t repacked = 0;      // copies of weights, shared between engines of a model
  int64_t kv_and_state = 0;  // resident pages of the caches
  int64_t workspace = 0;     // activations and kernels' scratch
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const LoadedModel> model,
                                                EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread. An error says what of the request is impossible; nothing of it was kept then.
  Result<RequestId> submit(Request request, Listener listener);
  // Any thread. The request ends with FinishReason::kCancelled at the next step, unless it has ended already.
  void cancel(RequestId id);

  // One thread at a time. Runs one step; false when there was nothing to do.
  bool step();
  // Any thread: whether a submitted request has not ended yet.
  bool busy() const { return unfinished_.load(std::memory_order_acquire) > 0; }

  const LoadedModel& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }
  int64_t context() const { return options_.context; }
  const StepStats& stats() const { return stats_; }
  // Loading the model, and what the engine added to be ready.
  double load_seconds() const { return model_->load_seconds + create_seconds_; }
  MemoryUse memory() const;
  OpContext op_context();

  // Books of the caches: pools consistent, every block reference accounted for. For tests; the stepping
  // thread only.
  Status check() const;

 private:
  struct Sequence;
  Engine(std::shared_ptr<const LoadedModel> model, EngineOptions options, CacheStorage storage,
         int32_t blocks, int32_t slots);

  // Whether generated tokens take kernels of their own.
  bool for_few() const { return options_.max_sequences <= kFewSequences; }
  void repack();
  Status validate(const Request& r) const;
  void take_incoming();
  SchedulerState snapshot() const;
  void admit(SeqId id);
  // One forward pass. `generated`: all of it are decodes, for kernels of their own.
  void run(std::span<const Work> works, bool generated);
  void commit(Sequence& s, const Sampled& sampled);
  void finish(Sequence& s, const TokenEvent& event);

  std::shared_ptr<const LoadedModel> model_;
  EngineOptions options_;
  ThreadPool pool_;
  std::shared_ptr<const RepackedWeights> repacked_;  // may be null
  double create_seconds_ = 0.0;
  Workspace workspace_;
  CacheStorage storage_;
  BlockPool blocks_;
  StatePool slots_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  StepStats stats_;

  mutable std::mutex inbox_mutex_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<RequestId> cancels_;
  int32_t next_id_ = 0;
  std::atomic<int64_t> unfinished_{0};
};

}  // namespace quire
