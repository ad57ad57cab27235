#include "core/thread_pool.h"

#include <fmt/format.h>
#include "core/m256.h"

#include <system_error>

namespace quire {
namespace {

// About 50 us of spinning on a 2-3 GHz CPU: longer than the gap between two operators of a decode step, far
// shorter than anything a person would notice on the power meter.
constexpr int kSpins = 2000;

// Of region_; below kOpen is the number of threads inside.
constexpr uint64_t kOpen = uint64_t{1} << 31, kNumber = uint64_t{1} << 32;

// Waits until `a` differs from `old`: spin, then park.
template <class T>
void wait_change(std::atomic<T>& a, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (a.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  a.wait(old, std::memory_order_acquire);
}

template <class T>
void wait_until(std::atomic<T>& a, T wanted) {
  for (T seen = a.load(std::memory_order_acquire); seen != wanted; seen = a.load(std::memory_order_acquire))
    wait_change(a, seen);
}

}  // namespace

void Phase::wait() {
  wait_until(done_, count_);
}

ThreadPool::ThreadPool(int threads) : size_(threads < 1 ? 1 : threads) {
  int t = 1;
  try {
    threads_.reserve(static_cast<size_t>(size_ - 1));
    for (; t < size_; ++t) threads_.emplace_back([this, t] { worker(t); });
  } catch (const std::system_error& e) {
    stop();
    throw std::system_error(e.code(), fmt::format("thread {} of {} does not start", t + 1, size_));
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::run_erased(Erased fn, void* arg, bool everybody) {
  if (size_ == 1) {
    fn(arg, 0);
    return;
  }
  fn_ = fn;
  arg_ = arg;
  everybody_ = everybody;
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t number = (region_.load(std::memory_order_relaxed) / kNumber + 1) * kNumber;
  region_.store(number | kOpen, std::memory_order_release);
  calls_.fetch_add(1, std::memory_order_release);
  calls_.notify_all();
  fn(arg, 0);
  if (everybody) wait_until(finished_, static_cast<uint32_t>(size_ - 1));
  region_.fetch_and(~kOpen, std::memory_order_acq_rel);
  wait_until(region_, number);
}

// A thread that comes late for one region may find the next one open before it is called: it then enters that, and the
// number in the same word says that it has.
void ThreadPool::worker(int thread) {
  uint64_t last = 0;  // the number of the region that it was in
  uint32_t seen = 0;
  for (;;) {
    wait_change(calls_, seen);
    seen = calls_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    uint64_t region = region_.load(std::memory_order_acquire);
    bool inside = false;
    while (!inside && (region & kOpen) != 0 && region / kNumber != last)
      inside = region_.compare_exchange_weak(region, region + 1, std::memory_order_acq_rel);
    if (!inside) continue;
    last = region / kNumber;
    fn_(arg_, thread);
    if (everybody_) {
      finished_.fetch_add(1, std::memory_order_acq_rel);
      finished_.notify_one();
    }
    if (region_.fetch_sub(1, std::memory_order_acq_rel) % kNumber == 1) region_.notify_one();
  }
}

}  // namespace quire
