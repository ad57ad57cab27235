// Computes masks that take long on threads of its own, so that no step waits for them. Internal to the engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "constraint/constrained_output.h"

namespace quire {

// The mask of one sequence's next token.
struct MaskJob {
  // From start() on until the job is done, nobody else touches what it points to.
  std::shared_ptr<ConstrainedOutput> constraint;
  TokenId token = -1;  // not -1: comes before the mask, and is to be committed
  // Once it is done:
  bool accepted = true;        // the token was; otherwise there is no mask, and neither is behind the answer's end
  std::vector<uint32_t> mask;  // empty: there was no memory for it
  double seconds = 0.0;        // that it took
  std::atomic<bool> done = false;

  // Does a part of the job on the calling thread; `done` afterwards: it was the last.
  void advance();

 private:
  bool is_last_part();
};

class MaskPool {
 public:
  // `on_done` is called after each job, on the thread that did it.
  explicit MaskPool(std::function<void()> on_done) : on_done_(std::move(on_done)) {}
  // The parts that are being done are waited for.
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;

  // Jobs that wait take turns, a part each. One that its caller has let go of is dropped. One thread at a time.
  void start(std::shared_ptr<MaskJob> job);

 private:
  void work();

  const std::function<void()> on_done_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<MaskJob>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // none before the first job
};

}  // namespace quire
