// What long work is at, said on standard error: a line for each stage with the time that is left, and the program's
// memory while it runs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lab/snapshot/record.h"

namespace quire::cli::snapshot {

class Stages {
 public:
  struct Stage {
    std::string name;
    double seconds = 0;  // that it should take
  };
  // `gpu`: whose memory is looked at, too; -1: none.
  Stages(std::vector<Stage> plan, int gpu);
  ~Stages();
  Stages(const Stages&) = delete;

  // Of the plan, in its order; those in between are left out.
  void begin(const std::string& name);
  // What of this stage is known by now.
  void expect(const std::string& name, double seconds);
  // That all have taken.
  double seconds() const;
  // Every quarter of a second, and each stage's beginning; stops looking.
  std::vector<MemorySample> take_memory();

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  void sample();
  void stop();

  std::vector<Stage> plan_;
  size_t at_ = 0;
  const int gpu_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::string stage_ = "start";
  std::vector<MemorySample> memory_;
  std::thread watcher_;
};

// "42 s", "3:20 min".
std::string said_seconds(double seconds);

// Bytes of this process that are in memory; 0 if Linux does not say.
int64_t resident_bytes();

}  // namespace quire::cli::snapshot
