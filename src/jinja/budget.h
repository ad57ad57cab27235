// Meters of one render: steps and bytes against the limits, and a string builder that pays as it grows.
#pragma once

#include <string>
#include <string_view>

#include "jinja/error.h"
#include "jinja/limits.h"
#include "jinja/text.h"

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

  // Text of the template's, or of ours.
  void add(std::string_view own) {
    grow(own.size());
    budget_.step(1 + own.size() / 32);
    text_.bytes.append(own);
  }
  void add(char own) {
    grow(1);
    text_.bytes.push_back(own);
  }
  void add(const Text& text) { add(text, text.bytes); }
  // A part of a text: `piece` lies within its bytes.
  void add(const Text& of, std::string_view piece) {
    const std::size_t begin = of.offset(piece), at = text_.bytes.size();
    add(piece);
    add_ranges(of, begin, begin + piece.size(), at);
  }
  // Text that stands for a part of another one, such as its escape.
  void add_for(const Text& of, std::string_view piece, std::string_view written) {
    const std::size_t begin = of.offset(piece), at = text_.bytes.size();
    add(written);
    ByteRanges found;
    if (!of.foreign.empty() && found.add_piece(of.foreign, begin, begin + piece.size(), 0) > 0)
      text_.foreign.add(at, at + written.size());
  }
  void repeat(const Text& text, std::uint64_t count) {
    if (text.bytes.empty() || count == 0) return;
    std::uint64_t bytes = 0;
    grow(__builtin_mul_overflow(count, text.bytes.size(), &bytes) ? SIZE_MAX : bytes);
    budget_.step(1 + bytes / 32);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::size_t at = text_.bytes.size();
      text_.bytes.append(text.bytes);
      add_ranges(text, 0, text.bytes.size(), at);
    }
  }
  void repeat(std::string_view own, std::uint64_t count) { repeat(Text(std::string(own)), count); }
  Text take() { return std::move(text_); }

 private:
  void grow(std::size_t bytes) {
    if (bytes > limit_ - text_.bytes.size()) [[unlikely]]
      fail("the text would be longer than {} bytes", limit_);
  }
  void add_ranges(const Text& of, std::size_t begin, std::size_t end, std::size_t at) {
    if (of.foreign.empty()) return;
    budget_.allocate(sizeof(ByteRange) * text_.foreign.add_piece(of.foreign, begin, end, at));
  }

  Budget& budget_;
  std::size_t limit_;
  Text text_;
};

}  // namespace quire::jinja
