#include "engine/inbox.h"

#include <utility>

namespace quire {

Inbox::Inbox(int64_t most_queued, int32_t most_running) : most_queued_(most_queued) {
  // For end(): of those that run, each is named once between two steps.
  const auto running = static_cast<size_t>(most_running);
  here_.ended_by_text.reserve(2 * running);
  taken_.ended_by_text.reserve(2 * running);
}

Result<std::vector<RequestId>> Inbox::put(std::vector<std::unique_ptr<Sequence>> sequences) {
  std::vector<RequestId> ids;
  ids.reserve(sequences.size());
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return *lost_;
    if (queued_ + std::ssize(sequences) > most_queued_)
      return capacity_error("{} requests wait already, and at most {} may; try again later", queued_, most_queued_);
    here_.sequences.reserve(here_.sequences.size() + sequences.size());  // the last thing that may throw
    queued_ += std::ssize(sequences);
    unfinished_.fetch_add(std::ssize(sequences), std::memory_order_release);
    for (auto& s : sequences) {
      s->id = RequestId{next_id_};
      s->stream->set_id(s->id);
      next_id_ = next_id_ == INT32_MAX ? 0 : next_id_ + 1;
      ids.push_back(s->id);
      here_.sequences.push_back(std::move(s));
    }
  }
  arrived_.notify_all();
  return ids;
}

void Inbox::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  here_.cancelled.push_back(id);
  arrived_.notify_all();
}

void Inbox::cancel_all() {
  const std::lock_guard lock(mutex_);
  here_.cancelled_all = true;
  arrived_.notify_all();
}

void Inbox::wake() {
  const std::lock_guard lock(mutex_);
  here_.woken = true;
  arrived_.notify_all();
}

void Inbox::end(RequestId id, bool by_text) {
  const std::lock_guard lock(mutex_);
  if (by_text) here_.ended_by_text.push_back(id);
  unfinished_.fetch_sub(1, std::memory_order_release);
  arrived_.notify_all();
}

int64_t Inbox::queued() const {
  const std::lock_guard lock(mutex_);
  return queued_;
}

std::optional<Error> Inbox::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

Inbox::Arrivals& Inbox::take() {
  taken_.sequences.clear();
  taken_.cancelled.clear();
  taken_.ended_by_text.clear();
  taken_.cancelled_all = taken_.woken = false;
  const std::lock_guard lock(mutex_);
  std::swap(taken_, here_);
  return taken_;
}

void Inbox::leave_queue(int64_t count) {
  const std::lock_guard lock(mutex_);
  queued_ -= count;
}

void Inbox::lose(Error error) {
  const std::lock_guard lock(mutex_);
  lost_ = std::move(error);
}

void Inbox::wait(std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  if (busy()) arrived_.wait_for(lock, longest, [&] { return !busy() || !here_.empty(); });
}

}  // namespace quire
