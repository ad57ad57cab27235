#include "core/thread_pool.h"

#include <immintrin.h>

namespace quire {
namespace {

// About 50 us of spinning on a 2-3 GHz CPU: longer than the gap between two operators of a decode step, far
// shorter than anything a person would notice on the power meter.
constexpr int kSpins = 2000;

// Waits until `a` differs from `old`: spin, then park.
void wait_change(std::atomic<uint32_t>& a, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (a.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  a.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads < 1 ? 1 : threads) {
  threads_.reserve(static_cast<size_t>(size_ - 1));
  for (int t = 1; t < size_; ++t) threads_.emplace_back([this, t] { worker(t); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::run_erased(Erased fn, void* arg) {
  if (size_ == 1) {
    fn(arg, 0);
    return;
  }
  fn_ = fn;
  arg_ = arg;
  pending_.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  fn(arg, 0);
  for (uint32_t left = pending_.load(std::memory_order_acquire); left != 0;
       left = pending_.load(std::memory_order_acquire))
    wait_change(pending_, left);
}

void ThreadPool::worker(int thread) {
  uint32_t seen = 0;
  for (;;) {
    wait_change(epoch_, seen);
    const uint32_t now = epoch_.load(std::memory_order_acquire);
    if (now == seen) continue;
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    fn_(arg_, thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size_)) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    phase_.notify_all();
    return;
  }
  while (phase_.load(std::memory_order_acquire) == phase) wait_change(phase_, phase);
}

}  // namespace quire
