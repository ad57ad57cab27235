// A fixed team of threads for fused regions: one call runs a function on the threads that are there, phases inside it
// share out pieces of work. Who is late, because other programs have its CPU, misses pieces and holds nobody up: the
// others take them, and only a piece that somebody has begun is waited for. No locks in the hot path: threads spin for
// a few tens of microseconds (a decode step starts a region every few), then park in the kernel, so an idle engine uses
// no CPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

// The pieces [0, count) of one phase of a region, handed out on demand: who computes a piece depends on timing; what it
// computes must not.
class Phase {
 public:
  explicit Phase(int64_t count) : count_(count) {}
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  // Calls fn(piece, the piece that this thread gets next, or -1) until there are no more. With `ahead` a thread takes
  // one piece ahead, so that its data can be on their way; without, when pieces are few and long, it takes one when it
  // is free and never knows the next. Once for each thread.
  //
  // A thread says how many pieces it has done when it gets no more, at once: before that it has one that is not done,
  // which all others wait for in any case, and saying it after each would have threads take turns at one more line of
  // memory.
  template <class Fn>
  void each(bool ahead, Fn&& fn) {
    int64_t mine = 0;
    for (int64_t piece = take(); piece < count_; ++mine) {
      const int64_t next = ahead ? take() : count_;
      fn(piece, next < count_ ? next : -1);
      piece = ahead ? next : take();
    }
    if (mine > 0) finish(mine);
  }

  // Waits until every piece is done, whoever has it. After each().
  void wait();

 private:
  int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }
  void finish(int64_t pieces) {
    if (done_.fetch_add(pieces, std::memory_order_acq_rel) + pieces == count_) done_.notify_all();
  }

  const int64_t count_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
};

class ThreadPool {
 public:
  // `threads` counts the caller: ThreadPool(1) starts none. Threads are not pinned. Where the system has no more
  // threads to give, std::system_error (resource_unavailable_try_again), and those that did start are gone: like
  // std::bad_alloc it ends what needed the pool.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // While set, nothing is called: what operators do besides, taking scratch memory above all, can be measured without
  // computing.
  void set_dry(bool dry) { dry_ = dry; }
  bool dry() const { return dry_; }

  // Calls fn(thread) on the caller, which is thread 0, and on every other thread that comes before the caller is done
  // with it: fn shares its work out with Phases, and does all of it if nobody else comes. Returns when all have
  // finished. Not reentrant; one caller at a time.
  template <class Fn>
  void share(Fn&& fn) {
    run_region(std::forward<Fn>(fn), false);
  }

  // Calls fn(thread) on every thread, and waits for all of them to come.
  template <class Fn>
  void run(Fn&& fn) {
    run_region(std::forward<Fn>(fn), true);
  }

  // Calls fn(begin, end, thread) for pieces of [0, n) of at most `grain`.
  template <class Fn>
  void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
    if (n <= 0 || dry_) return;
    if (size_ == 1 || n <= grain) {
      for (int64_t b = 0; b < n; b += grain) fn(b, std::min(b + grain, n), 0);
      return;
    }
    Phase pieces((n + grain - 1) / grain);
    share([&](int thread) {
      pieces.each(false, [&](int64_t i, int64_t) { fn(i * grain, std::min((i + 1) * grain, n), thread); });
    });
  }

 private:
  using Erased = void (*)(void*, int);

  template <class Fn>
  void run_region(Fn&& fn, bool everybody) {
    if (dry_) return;
    using F = std::remove_reference_t<Fn>;
    run_erased([](void* f, int thread) { (*static_cast<F*>(f))(thread); },
               const_cast<void*>(static_cast<const void*>(&fn)), everybody);
  }
  void run_erased(Erased fn, void* arg, bool everybody);
  void worker(int thread);
  void stop();

  int size_;
  bool dry_ = false;
  // What the region calls, and whether its caller waits for all threads to have been there.
  Erased fn_ = nullptr;
  void* arg_ = nullptr;
  bool everybody_ = false;
  // The region: its number (upper half), whether it is open, and how many threads besides the caller are in it.
  alignas(64) std::atomic<uint64_t> region_{0};
  alignas(64) std::atomic<uint32_t> calls_{0};     // bumped to call the threads: what they park on
  alignas(64) std::atomic<uint32_t> finished_{0};  // threads that have left a region that waits for all
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace quire
