// Writes a GPU's steps into a LaunchLog, those that are replayed as graphs too.
#pragma once

#include <functional>
#include <map>

#include "engine/graph_sizes.h"
#include "engine/launch_log.h"

namespace quire {

class GpuStepLog {
 public:
  // `to`: null if nobody asks. `launched`: how many kernels this thread has launched or captured so far.
  GpuStepLog(LaunchLog* to, int64_t& (*launched)()) : to_(to), logger_(launched) {}

  // For OpContext::launches.
  LaunchObserver* observer() { return to_ == nullptr ? nullptr : &logger_; }
  // What was launched since the last call of one of these was no step.
  void forget() { (void)logger_.take(false); }
  // It was a step, and has been computed; or it was captured, to be replayed.
  void computed(bool prompts);
  void captured(const GraphSize& size);
  // Such a graph was replayed. `choose` goes through the step that it served without launching: the kernels are those
  // that were captured, but what they move is what this step asks for.
  void replayed(const GraphSize& size, const std::function<void()>& choose);

 private:
  // The launches of one step.
  class Logger final : public LaunchObserver {
   public:
    explicit Logger(int64_t& (*launched)()) : launched_(launched) {}
    void begin(const Launch& l) override;
    void end() override;
    void refused(const Error&) override {}  // the context keeps it
    LoggedStep take(bool prompts);

   private:
    int64_t& (*launched_)();
    LoggedStep step_;
    int depth_ = 0;
  };

  LaunchLog* to_;
  Logger logger_;
  std::map<GraphSize, LoggedStep> graphs_;
};

}  // namespace quire
