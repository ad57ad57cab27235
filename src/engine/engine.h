// The engine: submit requests, run steps, receive tokens. A small API to embed:
//
//   auto model = load_model("m.gguf");
//   auto engine = Engine::create(*model, {});
//   (*engine)->submit(request, [](const TokenEvent& e) { ... });
//   while ((*engine)->busy()) (*engine)->step();
//
// The text (or embedding) a request gets depends on its prompt, parameters and seed only, never on what else runs, on
// how its prompt is cut into steps, on how far steps are planned ahead or on the number of threads. What it may depend
// on besides is what fingerprint() says: same fingerprint, same request, same bytes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "engine/backend.h"
#include "engine/cache_manager.h"
#include "engine/committer.h"
#include "engine/delivery.h"
#include "engine/encoder.h"
#include "engine/engine_counters.h"
#include "engine/inbox.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "engine/running_set.h"
#include "engine/scheduler.h"
#include "engine/sequence_masks.h"
#include "engine/speculator.h"
#include "engine/step_writer.h"
#include "engine/steps_in_flight.h"
#include "engine/waiting_requests.h"

namespace quire {

struct MemoryUse {
  int64_t mapped = 0;        // weights, in the page cache, shared with other processes
  int64_t converted = 0;     // small vectors converted to float32, and what was made of a folder's tensors
  int64_t repacked = 0;      // copies of weights, shared between engines of a model
  int64_t kv_and_state = 0;  // resident pages of the caches
  int64_t workspace = 0;     // activations and kernels' scratch of the largest step, and what pictures take
};

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const LoadedModel> model, EngineOptions options,
                                                const BackendFactory& backend = make_backend);
  // Requests that have not ended do so with FinishReason::kCancelled; their listeners have heard it on return.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread. An error says what of the request is impossible, (Fault::kCapacity) that max_waiting requests wait
  // already, or that the device is lost; nothing of it was kept then.
  Result<RequestId> submit(Request request, Listener listener);
  // The same for several at once: all of them or none, in this order.
  struct Submission {
    Request request;
    Listener listener;
  };
  Result<std::vector<RequestId>> submit(std::vector<Submission> submissions);
  // Any thread. The request ends with FinishReason::kCancelled at the next step, unless it has ended already.
  void cancel(RequestId id) { inbox_.cancel(id); }
  // All that were submitted before.
  void cancel_all() { inbox_.cancel_all(); }

  // One thread at a time. Plans and submits the next step, and commits the oldest one if no more may be in flight.
  // False when there was nothing to do; while listeners have yet to hear of an end, it waits for them.
  bool step();
  // Any thread: whether a submitted request has not ended yet, as its listener knows it.
  bool busy() const { return inbox_.busy(); }
  // Hears of every step that has been computed, on the thread that calls step(), which waits for it. Before the first
  // step.
  void observe_steps(std::function<void(const StepRecord&)> observer) { step_observer_ = std::move(observer); }
  // Any thread: not empty once the device is lost, as the requests that ended with it were told. Nothing is computed
  // any more then: a new engine may succeed, in a new process.
  std::optional<Error> lost() const { return inbox_.lost(); }
  // Waits until listeners have heard everything that steps have committed. Not from a listener.
  void drain_events() { delivery_.drain(); }

  const LoadedModel& model() const { return *model_; }
  const EnginePlan& plan() const { return plan_; }
  const CachePools& pools() const { return cache_.pools(); }     // that its caches are made of
  const PoolCounts& units() const { return backend_->units(); }  // of each
  int64_t context() const { return plan_.context; }
  // How much it holds at a time, in one line: "cache: 1.31M tokens in 25 GiB; 256 sequences of up to 262144 tokens,
  // steps of 2048 tokens, 122 prefix states".
  std::string capacity() const;
  // Any thread: everything that the bits of a text depend on besides the request, as a short text: the version of the
  // numerics, the instructions, the arithmetic, and which model it is.
  const std::string& fingerprint() const { return fingerprint_; }
  StepStats stats() const;  // any thread
  // Loading the model, and what the engine added to be ready.
  double load_seconds() const { return model_->load_seconds + create_seconds_; }
  MemoryUse memory() const;
  // What became of EngineOptions::kernels so far. The stepping thread only, while nothing is in flight.
  std::vector<ForcedCount> forced_kernels() const { return backend_->forced(); }

  // Keeps what the prefix cache holds in a file of at most `max_bytes` (cache/prefix_file.h). The stepping thread only;
  // no request is left. Nothing is written where there is nothing to keep.
  Result<PrefixFileContent> save_prefixes(const std::string& path, int64_t max_bytes);
  // Begins with what a file keeps. The stepping thread only, before anything is submitted. An error says why the file
  // is of no use; the cache is empty then.
  Result<PrefixFileContent> load_prefixes(const std::string& path);

  // From now on `sink` hears of what prompts can go on from (cache/kv_event.h). The stepping thread only, before
  // anything is submitted and after load_prefixes(). `open`: null, or the salts (Request::cache_salt) of the prompts
  // whose tokens may be told.
  void tell_prefixes(std::shared_ptr<KvEventSink> sink, const std::optional<std::vector<std::string>>& open);

  // Books of the caches: pools consistent, every block reference accounted for. For tests; the stepping thread only.
  Status check() const { return cache_.check(running_.all()); }

 private:
  using Clock = std::chrono::steady_clock;

  Engine(std::shared_ptr<const LoadedModel> model, EnginePlan plan, std::unique_ptr<Backend> backend);
  static Result<std::unique_ptr<Engine>> create_on_device(std::shared_ptr<const LoadedModel> model,
                                                          EngineOptions options, const BackendFactory& backend);

  // On the thread that submits.
  Status validate(const Request& r) const;
  Result<std::unique_ptr<Sequence>> prepare(Submission submission) const;

  // Moves in what other threads left.
  void take_incoming();
  void carry_out_cancels(Inbox::Arrivals& arrived);

  // The three parts of step(). Plans the next step and admits who is in it; false: there is nothing to do. `drafts`:
  // sequences speculate, so that no steps overlap.
  bool schedule(bool drafts);
  bool waits_for_newest(bool drafts);
  // Writes the planned step and gives it to the backend. `begin`: when its planning began.
  void submit_step(Clock::time_point begin);
  // Waits for the oldest step in flight, and commits what it computed.
  void retire();

  void take_snapshot();
  void choose_pictures();
  void admit_planned();
  void note_admission();
  void add_rows(const Work& work, bool decode, StepInFlight& step);
  void write_masks(StepInFlight& step);
  void write_masks_that_wait();
  // What of a retired step concerns the caches is done on return; after an error nothing of it is kept for others.
  Result<StepResults> wait_for(StepInFlight& step);
  void publish_caches();

  // A step failed: ends the requests that it can have touched, all of them if the device is lost.
  void fail(Error error);
  void fail_running(const Error& error);
  void fail_all(const Error& error);
  void finish_waiting(RequestId id, const TokenEvent::Ended& end);
  void release_finished();
  PrefixFileOwner prefix_owner() const;

  std::shared_ptr<const LoadedModel> model_;
  EnginePlan plan_;
  std::string fingerprint_;
  double create_seconds_ = 0.0;

  // Other threads call these two.
  Inbox inbox_;
  EngineCounters counters_;

  Delivery delivery_;  // calls the inbox
  std::unique_ptr<Backend> backend_;
  CacheManager cache_;
  StepWriter writer_;
  StepsInFlight in_flight_;
  WaitingRequests waiting_;
  RunningSet running_;
  Speculator speculator_;
  Encoder encoder_;

  // Of the step that is planned.
  SchedulerState snapshot_;
  StepPlan step_plan_;
  EncoderSlice slice_;                // what it encodes
  std::vector<Encoder::Need> needs_;  // who needs pictures
  StepRecord record_;

  int64_t planned_steps_ = 0;
  double waited_seconds_ = 0.0;  // for the backend, so far
  std::function<void(const StepRecord&)> step_observer_;
  // Keys of a prefix's tokens, new with every engine, and of salts, which a file of prefixes brings along.
  KeyedHash prefix_hash_ = KeyedHash::random(), salt_hash_ = KeyedHash::random();

  SequenceMasks masks_;  // its threads call the inbox
  Committer committer_;
};

}  // namespace quire
