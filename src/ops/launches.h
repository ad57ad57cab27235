// Seeing which kernels run: who looks on is told of every call that dispatch() passes to a kernel, and of every call
// that no kernel takes. That is what a dry step at load, `quire explain` and `quire profile` are made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire {

// What a call moves and computes if everything that the contract names is read once and written once. What lies
// between two phases of an operator does not count, nor do scratch memory and lists of segments.
struct Traffic {
  int64_t bytes = 0;
  int64_t flops = 0;  // multiplications and additions; an exponential is kExpFlops of them

  Traffic& operator+=(const Traffic& t) {
    bytes += t.bytes, flops += t.flops;
    return *this;
  }
};
inline constexpr int64_t kExpFlops = 12;
inline constexpr int64_t kSiluFlops = kExpFlops + 3;

// A kernel of the table that was not chosen, although it stands before the one that was.
struct PassedOver {
  enum class Why {
    kLacks,         // the machine lacks what the kernel needs
    kDoesNotFit,    // it does not take these shapes or types
    kNotPreferred,  // it could run, and another is expected to be faster
    kNotForced,     // it could run, and another was asked for
  };
  std::string_view kernel;
  Why why = Why::kDoesNotFit;
};
std::string_view reason(PassedOver::Why why);  // "does not fit"

// One call, and the kernel that takes it.
struct Launch {
  std::string_view op, kernel;
  std::string arguments;           // types and shapes, in words
  std::vector<PassedOver> passed;  // those of the machine's device before it, in the table's order
  bool forced = false;
  Traffic traffic;
};

// Set as OpContext::launches. Called by the thread that calls the operators.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;

  // Before the kernel runs (or enqueues), and after it has. A kernel that calls other operators shows theirs in
  // between.
  virtual void begin(const Launch& launch) = 0;
  virtual void end() {}
  // Nobody takes a call. The error names operator, types and shapes, and what kernels there are; on a GPU it is also
  // kept in OpContext::gpu.
  virtual void refused(const Error& error) = 0;
};

}  // namespace quire
