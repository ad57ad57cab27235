// Which operators the kernels of a GPU's steps belong to, for profiles: the records of the driver have kernels' names
// and times, in the order in which they were launched, and this has the launches in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/launches.h"

namespace quire {

// One call of an operator by the forward pass, and how many kernels its launch consists of. Operators that it calls for
// parts of its work are part of it.
struct LoggedLaunch {
  std::string op, kernel;
  Traffic traffic;
  int64_t kernels = 0;
};
struct LoggedStep {
  bool prompts = false;  // has rows of prompts
  std::vector<LoggedLaunch> launches;
};

// Set as EngineOptions::launches. A backend adds every step when it enqueues it, on the thread that steps the engine.
class LaunchLog {
 public:
  void add(std::shared_ptr<const LoggedStep> step) { steps_.push_back(std::move(step)); }
  // Those since the last call.
  std::vector<std::shared_ptr<const LoggedStep>> take() { return std::exchange(steps_, {}); }

 private:
  std::vector<std::shared_ptr<const LoggedStep>> steps_;
};

}  // namespace quire
