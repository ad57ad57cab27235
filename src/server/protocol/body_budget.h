// How many bytes of bodies a server holds at once, over all its connections.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace quire::server {

// Any thread.
class BodyBudget {
 public:
  explicit BodyBudget(size_t bytes) : limit_(bytes) {}

  size_t limit() const { return limit_; }
  size_t held() const { return held_.load(std::memory_order_relaxed); }
  // Whether so many more would fit now.
  bool has_room(size_t bytes) const {
    const size_t held = held_.load(std::memory_order_relaxed);
    return held <= limit_ && bytes <= limit_ - held;
  }

 private:
  friend class BodyShare;
  bool take(size_t bytes) {
    size_t held = held_.load(std::memory_order_relaxed);
    do {
      if (held > limit_ || bytes > limit_ - held) return false;
    } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }
  void give_back(size_t bytes) { held_.fetch_sub(bytes, std::memory_order_relaxed); }

  const size_t limit_;
  std::atomic<size_t> held_{0};
};

// What one body takes of a budget, from its first byte until this is released or destroyed. It lives beside the bytes.
class BodyShare {
 public:
  BodyShare() = default;  // of no budget: everything fits
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  BodyShare(BodyShare&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyShare& operator=(BodyShare&& other) noexcept {
    if (this == &other) return *this;
    release();
    budget_ = std::move(other.budget_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~BodyShare() { release(); }

  // False, and nothing is taken, if the budget has no room for so many more.
  bool grow(size_t bytes) {
    if (budget_ == nullptr) return true;
    if (!budget_->take(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  void release() {
    if (budget_ != nullptr) budget_->give_back(std::exchange(bytes_, 0));
  }

 private:
  std::shared_ptr<BodyBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace quire::server
