// A progress bar for work of known size, on standard error. Shown only when that is a terminal and the work
// takes longer than a moment; redrawn a few times a second; gone when it ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace quire {

class Progress {
 public:
  enum class Unit { kItems, kBytes };

  // `what` is one or two words: "loading". Not for several threads at once.
  Progress(std::string what, int64_t total, Unit unit = Unit::kItems);
  // For tests: another stream, drawn whether or not it is a terminal.
  Progress(std::string what, int64_t total, Unit unit, std::FILE* to);
  ~Progress();  // removes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(int64_t amount) { set(done_ + amount); }
  // Cheap enough to be called for every tensor or every megabyte.
  void set(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);

  std::string what_;
  int64_t total_, done_ = 0;
  Unit unit_;
  std::FILE* to_;  // null: not shown
  Clock::time_point start_, next_draw_;
  size_t width_ = 0;  // columns on the screen now
};

// "loading [=========>          ]  47%  7.1 of 15.0 GB  1.2 GB/s  6 s left". Seconds since the start; no rate
// and no estimate at the very beginning.
std::string progress_line(const std::string& what, int64_t done, int64_t total, Progress::Unit unit, double seconds);

}  // namespace quire
