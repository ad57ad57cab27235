// A fixed team of threads for fused regions: one call runs a function on every thread, a barrier inside it
// separates phases, and a shared counter hands out tiles. No locks in the hot path: threads spin for a few
// tens of microseconds (a decode step starts a region every few), then park in the kernel, so an idle engine
// uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

class ThreadPool {
 public:
  // `threads` counts the caller: ThreadPool(1) starts none. Threads are not pinned.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // While set, run() and parallel_for() call nothing: what operators do besides, taking scratch memory above all, can be
  // measured without computing.
  void set_dry(bool dry) { dry_ = dry; }
  bool dry() const { return dry_; }

  // Calls fn(thread) on every thread, 0 being the caller, and returns when all have finished. Not reentrant;
  // one caller at a time.
  template <class Fn>
  void run(Fn&& fn) {
    if (dry_) return;
    using F = std::remove_reference_t<Fn>;
    run_erased([](void* f, int thread) { (*static_cast<F*>(f))(thread); },
               const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Inside run(): waits until every thread of the team has arrived. All or none must call it.
  void barrier();

  // Calls fn(begin, end, thread) for pieces of [0, n) of at most `grain`, handed out on demand. Who computes
  // a piece depends on timing; what it computes must not.
  template <class Fn>
  void parallel_for(int64_t n, int64_t grain, Fn&& fn) {
    if (n <= 0 || dry_) return;
    if (size_ == 1 || n <= grain) {
      for (int64_t b = 0; b < n; b += grain) fn(b, b + grain < n ? b + grain : n, 0);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int thread) {
      for (;;) {
        const int64_t b = next.fetch_add(grain, std::memory_order_relaxed);
        if (b >= n) return;
        fn(b, b + grain < n ? b + grain : n, thread);
      }
    });
  }

 private:
  using Erased = void (*)(void*, int);
  void run_erased(Erased fn, void* arg);
  void worker(int thread);

  int size_;
  bool dry_ = false;
  Erased fn_ = nullptr;
  void* arg_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};    // bumped to start a region
  alignas(64) std::atomic<uint32_t> pending_{0};  // workers that have not finished the region
  alignas(64) std::atomic<uint32_t> arrived_{0};  // barrier: threads of this phase that have arrived
  alignas(64) std::atomic<uint32_t> phase_{0};    // barrier: bumped when all have
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace quire
