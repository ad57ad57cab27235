// Meters of one render: steps and bytes against the limits, and a string builder that pays as it grows.
#pragma once

#include <string>
#include <string_view>

#include "jinja/error.h"
#include "jinja/limits.h"

namespace quire::jinja {

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }

  void step(std::uint64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.max_steps) [[unlikely]]
      fail("the template takes more than {} steps", limits_.max_steps);
  }

  // Copying is work too: a step for every 32 bytes.
  void allocate(std::uint64_t bytes) {
    step(1 + bytes / 32);
    bytes_ += bytes;
    if (bytes_ > limits_.max_allocated_bytes) [[unlikely]]
      fail("the template builds more than {} bytes of values", limits_.max_allocated_bytes);
  }

  // To be called before a string of this size is made.
  void check_string(std::uint64_t bytes) const {
    if (bytes > limits_.max_string_bytes) [[unlikely]]
      fail("a string would be longer than {} bytes", limits_.max_string_bytes);
  }

  void check_depth(int depth) const {
    if (depth > limits_.max_value_depth) [[unlikely]]
      fail("values are nested more than {} levels deep", limits_.max_value_depth);
  }

 private:
  const Limits& limits_;
  std::uint64_t steps_ = 0;
  std::uint64_t bytes_ = 0;
};

class StringBuilder {
 public:
  explicit StringBuilder(Budget& budget) : StringBuilder(budget, budget.limits().max_string_bytes) {}
  StringBuilder(Budget& budget, std::size_t limit) : budget_(budget), limit_(limit) {}

  void add(std::string_view text) {
    grow(text.size());
    budget_.step(1 + text.size() / 32);
    text_.append(text);
  }
  void add(char c) {
    grow(1);
    text_.push_back(c);
  }
  void repeat(std::string_view text, std::uint64_t count) {
    if (text.empty() || count == 0) return;
    std::uint64_t bytes = 0;
    grow(__builtin_mul_overflow(count, text.size(), &bytes) ? SIZE_MAX : bytes);
    for (std::uint64_t i = 0; i < count; ++i) text_.append(text);
    budget_.step(1 + bytes / 32);
  }
  const std::string& text() const { return text_; }
  std::string take() { return std::move(text_); }

 private:
  void grow(std::size_t bytes) {
    if (bytes > limit_ - text_.size()) [[unlikely]]
      fail("the text would be longer than {} bytes", limit_);
  }

  Budget& budget_;
  std::size_t limit_;
  std::string text_;
};

}  // namespace quire::jinja
