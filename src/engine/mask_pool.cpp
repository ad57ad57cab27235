#include "engine/mask_pool.h"

#include <algorithm>
#include <chrono>

namespace quire {

bool MaskJob::is_last_part() {
  if (token >= 0) {
    accepted = constraint->commit(std::exchange(token, -1));
    return !accepted || constraint->ended();
  }
  if (constraint->prepare_next()) return false;
  try {
    mask.resize(static_cast<size_t>(constraint->words()));
    constraint->fill({}, mask);
  } catch (const std::bad_alloc&) {
    mask.clear();
  }
  return true;
}

void MaskJob::advance() {
  const auto begin = std::chrono::steady_clock::now();
  const bool last = is_last_part();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (last) done.store(true, std::memory_order_release);
}

MaskPool::~MaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void MaskPool::start(std::shared_ptr<MaskJob> job) {
  // Few: on a CPU they take cores from steps.
  if (threads_.empty()) {
    const int count = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  work_.notify_one();
}

void MaskPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    std::shared_ptr<MaskJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    if (job.use_count() == 1) continue;
    lock.unlock();
    job->advance();
    if (job->done) {
      job.reset();
      on_done_();
    }
    lock.lock();
    if (job != nullptr) jobs_.push_back(std::move(job));
  }
}

}  // namespace quire
