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

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "engine/backend.h"
#include "engine/cache_manager.h"
#include "engine/delivery.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "engine/running_set.h"
#include "engine/scheduler.h"
#include "engine/sequence_masks.h"
#include "engine/speculator.h"
#include "engine/step_writer.h"
#include "engine/steps_in_flight.h"
#include "engine/waiting_queue.h"

namespace quire {

struct StepStats {
  int64_t steps = 0, prompt_tokens = 0, decode_tokens = 0;
  // Drafts that steps verified, how many sequences had some so often, and how many of the i-th drafts were right.
  int64_t drafted_sequences = 0, drafts = 0, drafts_accepted = 0;
  std::array<int64_t, kMostDrafts> accepted_at{};
  double prompt_seconds = 0.0, decode_seconds = 0.0;  // a mixed step's time is shared by rows
  // Of the prompts that were admitted: tokens, those of them that the prefix cache had, and why it had no more.
  int64_t prefix_queries = 0, prefix_hits = 0;
  std::array<int64_t, kPrefixMisses> prefix_misses{};
  int64_t preemptions = 0, blocks_swapped_out = 0, blocks_swapped_in = 0;
  PoolUses pools;       // of the caches, now
  int64_t waiting = 0;  // requests that have no batch slot yet, now
  // The prefix cache's memory on the host: pages now, states among what lies there, bytes that went there and came back
  // so far, and tokens of prompts whose blocks came back.
  int64_t host_pages_used = 0, host_pages_total = 0, host_states = 0;
  int64_t host_bytes_stored = 0, host_bytes_loaded = 0, host_tokens_loaded = 0;
  int64_t masks = 0;          // of rows whose token was constrained, and
  double mask_seconds = 0.0;  // what computing them took
  int64_t mask_waits = 0;     // steps in which the device waited for them
  int64_t slow_masks = 0;     // of the former, those that sequences waited for while steps went on without them
  double host_seconds = 0.0;  // in step(), without waiting for the backend: planning, submitting, committing
};

struct MemoryUse {
  int64_t mapped = 0;        // weights, in the page cache, shared with other processes
  int64_t converted = 0;     // small vectors converted to float32, and what was made of a folder's tensors
  int64_t repacked = 0;      // copies of weights, shared between engines of a model
  int64_t kv_and_state = 0;  // resident pages of the caches
  int64_t workspace = 0;     // activations and kernels' scratch of the largest step
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
  void cancel(RequestId id);
  // All that were submitted before.
  void cancel_all();

  // One thread at a time. Plans and submits the next step, and commits the oldest one if `depth` are in flight. False
  // when there was nothing to do; while listeners have yet to hear of an end, it waits for them.
  bool step();
  // Any thread: whether a submitted request has not ended yet, as its listener knows it.
  bool busy() const { return unfinished_.load(std::memory_order_acquire) > 0; }
  // Hears of every step that has been computed, on the thread that calls step(), which waits for it. Before the first
  // step.
  void observe_steps(std::function<void(const StepRecord&)> observer) { step_observer_ = std::move(observer); }
  // Any thread: not empty once the device is lost, as the requests that ended with it were told. Nothing is computed
  // any more then: a new engine may succeed, in a new process.
  std::optional<Error> lost() const;
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

  // Books of the caches: pools consistent, every block reference accounted for. For tests; the stepping thread only.
  Status check() const { return cache_.check(running_.all()); }

 private:
  using Clock = std::chrono::steady_clock;
  // Waiting requests that are looked at beside those that there are batch slots for: prefix hits among them go first.
  // Those that wait for another one's result are none of them, but so many at most are passed over: that bounds the
  // time of a look.
  static constexpr int32_t kLookAhead = 32, kMostDeferred = 256;
  // Requests that one step admits: however many batch slots are free and however many wait, a step looks at so many and
  // kLookAhead more.
  static constexpr int32_t kMostAdmitted = 256;

  Engine(std::shared_ptr<const LoadedModel> model, EnginePlan plan, std::unique_ptr<Backend> backend);
  static Result<std::unique_ptr<Engine>> create_on_device(std::shared_ptr<const LoadedModel> model,
                                                          EngineOptions options, const BackendFactory& backend);

  Status validate(const Request& r) const;
  Result<std::unique_ptr<Sequence>> prepare(Submission submission) const;
  static std::shared_ptr<MaskJob> first_mask(const std::shared_ptr<ConstrainedOutput>& constraint);
  Result<std::vector<RequestId>> enqueue(std::vector<std::unique_ptr<Sequence>> sequences);
  PrefixFileOwner prefix_owner() const;
  void take_incoming();
  void carry_out_cancels();
  void take_snapshot();
  void take_masks();
  void look_at_waiting();
  bool has_shared_prefix(const Sequence& s) const;
  void note_beginning(Sequence& s);
  void admit_planned();
  void publish_counts();
  void publish_host_tier();
  void defer(ScheduledSequence& s, Deferral why);
  void note_admission();
  // The three parts of step(). Plans the next step and admits who is in it; false: there is nothing to do.
  bool schedule();
  // Writes the planned step and gives it to the backend. `begin`: when its planning began.
  void submit_step(Clock::time_point begin);
  // Waits for the oldest step in flight, and commits what it computed.
  void retire();

  void add_rows(const Work& work, bool decode, StepInFlight& step);
  void write_masks(StepInFlight& step);
  void write_masks_that_wait();
  // What of a retired step concerns the caches is done on return; after an error nothing of it is kept for others.
  Result<StepResults> wait_for(StepInFlight& step);
  void count_step(const StepRecord& record);
  int32_t commit_rows(const SequenceRows& rows, const StepResults& results);
  // Tokens that the rows of a sequence made: one, and another for each draft that was right. Returns how many were.
  int32_t commit_tokens(const SequenceRows& rows, const StepResults& results);
  void count_drafts(int32_t drafts, int32_t accepted);
  // `alone`: no further token of the same step follows.
  void commit_token(Sequence& s, Sampled sampled, bool alone);
  static TokenEvent::Ended dead_end();
  // Of a token that the sequence's constraint has accepted.
  void tell(Sequence& s, TokenEvent::Token token);
  void commit_prompt(Sequence& s);
  void tell_begun(Sequence& s);
  void finish(Sequence& s, TokenEvent::Ended end);
  // A step failed: ends the requests that it can have touched, all of them if the device is lost.
  void fail(Error error);
  void fail_running(const Error& error);
  void finish_waiting(RequestId id, const TokenEvent::Ended& end);
  void end_running(Sequence& s);
  void release_finished();
  void fail_all(const Error& error);
  void on_end(RequestId id, bool by_text);

  std::shared_ptr<const LoadedModel> model_;
  EnginePlan plan_;
  std::string fingerprint_;
  double create_seconds_ = 0.0;

  // What other threads leave for the stepping one.
  mutable std::mutex inbox_mutex_;
  std::condition_variable arrived_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<RequestId> cancels_, ended_by_text_;
  bool cancel_all_ = false, mask_made_ = false;
  int32_t next_id_ = 0;
  int64_t queued_ = 0;         // requests that have no batch slot yet
  std::optional<Error> lost_;  // the device's end
  StepStats stats_;
  std::atomic<int64_t> unfinished_{0};

  Delivery delivery_;
  std::unique_ptr<Backend> backend_;
  CacheManager cache_;
  StepWriter writer_;
  StepsInFlight in_flight_;
  RunningSet running_;
  double waited_seconds_ = 0.0;                           // for the backend, so far
  std::map<int32_t, std::unique_ptr<Sequence>> waiting_;  // by id
  WaitingQueue queue_;                                    // of the same
  // Those that the step which is planned looks at, and whose beginning others may have: a hash of it, and who it is.
  std::vector<Sequence*> candidates_;
  std::vector<std::pair<uint64_t, Sequence*>> beginnings_;
  SchedulerState snapshot_;
  StepPlan step_plan_;
  StepRecord record_;  // of the step that is planned
  std::function<void(const StepRecord&)> step_observer_;
  Speculator speculator_;
  // Keys of a prefix's tokens, new with every engine, and of salts, which a file of prefixes brings along.
  KeyedHash prefix_hash_ = KeyedHash::random(), salt_hash_ = KeyedHash::random();
  int64_t planned_steps_ = 0;
  std::vector<std::unique_ptr<Sequence>> arriving_;
  std::vector<RequestId> cancelling_, texts_;
  bool cancelling_all_ = false;
  SequenceMasks masks_;  // the last: its threads call what stands before
};

}  // namespace quire
