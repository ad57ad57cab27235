// The requests that wait, and the look at them with which a step is planned. Internal to the engine.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/cache_manager.h"
#include "engine/encoder.h"
#include "engine/plan.h"
#include "engine/running_set.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_record.h"
#include "engine/waiting_queue.h"

namespace quire {

// The stepping thread owns it. Steps are the engine's, counted from 1 as they are planned.
class WaitingRequests {
  // Waiting requests that are looked at beside those that there are batch slots for: prefix hits among them go first.
  // Those that wait for another one's result are none of them, but so many at most are passed over: that bounds the
  // time of a look.
  static constexpr int32_t kLookAhead = 32, kMostDeferred = 256;
  // Requests that one step admits: however many batch slots are free and however many wait, a step looks at so many and
  // kLookAhead more.
  static constexpr int32_t kMostAdmitted = 256;

 public:
  // A look tells of no more than so many.
  static constexpr size_t kMostLookedAt = kMostAdmitted + kLookAhead + kMostDeferred;

  explicit WaitingRequests(const EnginePlan& plan);  // which must outlive it

  bool empty() const { return sequences_.empty(); }
  int32_t size() const { return static_cast<int32_t>(sequences_.size()); }
  bool contains(RequestId id) const { return sequences_.contains(id.v); }
  RequestId first() const { return RequestId{sequences_.begin()->first}; }  // by id; while there is one

  // The sequence waits from now on.
  void add(std::unique_ptr<Sequence> s, int64_t step);
  // It waits no more, and will not run.
  std::unique_ptr<Sequence> remove(RequestId id);
  // It runs from now on, until end() is called for its client. `number`: by which the last look told of it.
  std::unique_ptr<Sequence> admit(SeqId number, int64_t step);
  void end(uint64_t client);

  // Goes through those that should be served next, as far as the free places can take them and some more, and writes
  // down for the scheduler who they are, and for the record whom the step defers.
  void look(const RunningSet& running, CacheManager& cache, Encoder& encoder, int64_t step, SchedulerState& snapshot,
            StepRecord& record);
  // How many the last look has told of.
  int32_t looked_at() const { return static_cast<int32_t>(candidates_.size()); }
  // Who they are, in that order.
  std::span<Sequence* const> candidates() const { return candidates_; }

 private:
  // What one step can do for those who begin with a cached prefix, used so far.
  struct Used {
    int64_t past = 0, moves = 0;
  };
  ScheduledSequence& add_candidate(Sequence& s, const WaitingQueue::Entry& entry, SchedulerState& snapshot);
  std::optional<Deferral> reason_to_defer(const Sequence& s, const CacheManager& cache, Used& used) const;
  bool has_shared_prefix(const Sequence& s, const CacheManager& cache) const;
  void note_beginning(Sequence& s);

  const EnginePlan& plan_;
  std::map<int32_t, std::unique_ptr<Sequence>> sequences_;  // by id
  WaitingQueue queue_;                                      // of the same
  // Those that the last look has told of, and whose beginning others may have: a hash of it, and who it is.
  std::vector<Sequence*> candidates_;
  std::vector<std::pair<uint64_t, Sequence*>> beginnings_;
};

}  // namespace quire
