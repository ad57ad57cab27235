// What other threads leave for the thread that steps an engine: requests, cancels, ends that were found in texts, and
// the word that a mask is there. Internal to the engine.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/sequence.h"

namespace quire {

// One mutex guards all of it. Each function says whose it is: any thread's, the delivering thread's (Delivery), or the
// stepping thread's.
class Inbox {
 public:
  // `most_queued`: requests without a batch slot at a time; `most_running`: those with one.
  Inbox(int64_t most_queued, int32_t most_running);

  // Any thread. Gives each sequence its id, and keeps them in this order: all or none. An error says that the queue is
  // full (Fault::kCapacity), or that the device is lost.
  Result<std::vector<RequestId>> put(std::vector<std::unique_ptr<Sequence>> sequences);
  // Any thread. Ids of requests that have ended, or that nobody has, are passed on as well.
  void cancel(RequestId id);
  // Any thread. All that were put before.
  void cancel_all();
  // Any thread. A mask is there that a sequence waits for: there may be something to compute.
  void wake();
  // The delivering thread. A listener has heard the end of its request, which a stop text ended if `by_text`. Takes no
  // memory.
  void end(RequestId id, bool by_text);

  // Any thread: whether some request has not ended yet, as its listener knows it.
  bool busy() const { return unfinished_.load(std::memory_order_acquire) > 0; }
  // Any thread: requests that have no batch slot yet.
  int64_t queued() const;
  // Any thread: the end of the device, if that has come.
  std::optional<Error> lost() const;

  // What arrived since the last take().
  struct Arrivals {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<RequestId> cancelled, ended_by_text;
    bool cancelled_all = false;
    bool woken = false;

    bool empty() const {
      return sequences.empty() && cancelled.empty() && ended_by_text.empty() && !cancelled_all && !woken;
    }
  };
  // The stepping thread. It may change what it gets, which stays until the next call.
  Arrivals& take();
  // The stepping thread. So many requests have left the queue: they have a batch slot, or have ended without one.
  void leave_queue(int64_t count);
  // The stepping thread. Nothing is computed any more: put() refuses everything from now on.
  void lose(Error error);
  // The stepping thread. While requests have yet to end: until something arrives or the last of them has ended, but no
  // longer than that.
  void wait(std::chrono::milliseconds longest);

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  Arrivals here_;
  int32_t next_id_ = 0;
  int64_t queued_ = 0;
  std::optional<Error> lost_;

  const int64_t most_queued_;
  std::atomic<int64_t> unfinished_{0};
  Arrivals taken_;  // the stepping thread's
};

}  // namespace quire
