// Where steps are computed. Virtual at the granularity of a step: within one, operators find their kernels themselves.
// What a backend allocates (caches, scratch, arrays of steps, results) is its own; the host sees staging memory and
// results, and nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cache/prefix_file.h"
#include "cache/storage.h"
#include "engine/encoder_batch.h"
#include "engine/loaded_model.h"
#include "engine/plan.h"
#include "model/step.h"

namespace quire {

class ComputeDevice;

// Steps that may be under way: on each device one is computed while the next one waits behind it.
inline constexpr int kMostDepth = 2 * kMostStages;

// What came back of a step: host memory, valid until its buffer is submitted again.
struct StepResults {
  SampleOutputs out;     // of the step's logit rows
  Tensor hidden;         // [hidden_rows, D] f32: of its hidden rows, in their order
  SampleOutputs scored;  // of its scored rows
  Tensor drafts;         // [batch_slots, drafts] i32: what the multi-token-prediction block drafted, where it did
  double seconds = 0.0;  // that the backend computed
};

struct BackendMemory {
  int64_t repacked = 0;      // copies of weights
  int64_t kv_and_state = 0;  // of the caches, as far as it is backed by memory
  int64_t workspace = 0;     // activations and kernels' scratch
};

struct HostPages {
  int32_t swap = 0, cache = 0;
  int32_t all() const { return swap + cache; }
};

// One thread calls everything but memory() and wait(); wait() may be another's. What a CacheMemory does is done while
// no step is under way: blocks and states as files keep them.
class Backend : public CacheMemory {
 public:
  virtual const StepLayout& layout() const = 0;
  // What its caches are made of, and how many units each pool has (the fillers of windows not counted).
  virtual const CachePools& pools() const = 0;
  virtual const PoolCounts& units() const = 0;
  // Pages of the host's memory, each of a KV block's size: those that sequences are swapped out to, then those of the
  // prefix cache.
  virtual HostPages host_pages() const = 0;

  // Host memory in which the host lays out a step. Buffers are 0 ... EnginePlan::step_buffers() - 1; one may be written
  // while no step that was submitted from it is under way.
  virtual std::byte* staging(int buffer) = 0;
  // Enqueues the step that lies in a buffer: moves to the host and back, copies, the tokens to be noted, the pass, and
  // the sampling, in this order; a step without rows ends before the pass. Steps are computed one after the other, in
  // this order. The values are checked here (a mistake is fatal). `encode`, if it has a batch, is computed before: its
  // rows are there for this step, if it is the batch's last slice.
  virtual void submit(int buffer, const StepShape& shape, const EncoderSlice& encode = {}) = 0;
  // To be called once where a submitted step has masks, which are in the staging memory now: nothing samples before. No
  // other step is submitted in between, but steps before it may be waited for. Returns whether the device had computed
  // everything else by then, and waited.
  virtual bool masks_written(int buffer) = 0;
  // Of a submitted step with masks: waits for what the multi-token-prediction block drafts in it, and returns that
  // (StepResults::drafts).
  virtual Result<Tensor> await_drafts(int buffer) = 0;
  // Waits for the step of a buffer. After an error lost() says whether any later step can succeed. If so, only this
  // step's results are none: what it moved and copied is done.
  virtual Result<StepResults> wait(int buffer) = 0;
  virtual bool lost() const = 0;
  // Whether steps with as many rows of each sequence are computed faster than others, padding included.
  virtual bool likes_even_rows() const { return false; }

  virtual BackendMemory memory() const = 0;
  // What the bits of its results depend on: "cpu avx2", with what was forced.
  virtual std::string numerics() const = 0;
  // What became of EngineOptions::kernels so far. While no step is under way.
  virtual std::vector<ForcedCount> forced() const = 0;
};

// What an engine with these options can have; `mtp`: with the model's block for multi-token prediction. On a GPU the
// model's weights have been placed then, and stay as long as `placed` or a backend has them.
struct MemoryOfEngine {
  EngineMemory memory;
  std::vector<StageMemory> stages;  // where several devices have the layers
  std::shared_ptr<const void> placed;
};
Result<MemoryOfEngine> memory_for(const std::shared_ptr<const LoadedModel>& model, const EngineOptions& options,
                                  bool mtp);

using BackendFactory =
    std::function<Result<std::unique_ptr<Backend>>(const std::shared_ptr<const LoadedModel>&, const EnginePlan&)>;

// How many pages of so many bytes swap_bytes and prefix_host_bytes of a plan hold: for swapping no more than all
// sequences could ever fill.
HostPages host_pages_of(const EnginePlan& plan, int64_t block_bytes);

// What the bits of results depend on (Backend::numerics): the machine, and what is forced.
std::string numerics_of(const Machine& m, const KernelChoice& forced);

// The backend of plan.device.
Result<std::unique_ptr<Backend>> make_backend(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan);
// The backend over other devices (engine/compute_device.h): `make` is called for each stage with its plan.
using DeviceFactory =
    std::function<Result<std::unique_ptr<ComputeDevice>>(const std::shared_ptr<const LoadedModel>&, const EnginePlan&)>;
BackendFactory backend_over(DeviceFactory make);

}  // namespace quire
