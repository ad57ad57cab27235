// Lines for a log, written by a thread of their own: whoever has something to say never waits for a disk, a pipe or a
// terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "core/result.h"

namespace quire {

// Lines that come while the queue is full are dropped, and so are those that cannot be written (the disk is full, the
// reader of a pipe has left). They are counted; the first is told and, once all that waits is written again, how many
// it were.
class LineWriter {
 public:
  struct Options {
    std::string name;                      // in what is told, such as "--access-log FILE"
    size_t max_bytes = size_t{4} << 20;    // of lines that wait or are being written
    std::chrono::milliseconds last{1000};  // that the destructor waits for the queue to be written
    // Told of troubles, one sentence each, on any thread that calls write() and on the writer's own; null: nobody is.
    std::function<void(std::string_view)> tell;
    // Called with every number of lines that were dropped, on the same threads; null: nobody counts.
    std::function<void(int64_t lines)> count_dropped;
    // A line that stands where so many are missing; null: none does.
    std::function<std::string(int64_t lines)> gap;
  };

  // Appends to a file, which is created where there is none; folders are not. A FIFO must have a reader by now.
  static Result<std::unique_ptr<LineWriter>> open(const std::string& path, Options options);
  // Writes to a descriptor that stays open as long as the process, such as standard error.
  static std::unique_ptr<LineWriter> to(int descriptor, Options options);
  // Waits for Options::last at most; what is not written by then is lost.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Any thread; waits for nobody. `line` has no end of line.
  void write(std::string_view line);
  // Waits until all that was given to write() is written or dropped; false if the time is up first. Any thread.
  bool drain(std::chrono::milliseconds at_most);
  // Any thread: what comes from now on goes into the file that has the name then, so that others may rename the one
  // that is open. A name that cannot be opened is told, and the file that is open stays in use.
  void reopen();

 private:
  struct Impl;
  explicit LineWriter(std::shared_ptr<Impl> impl);
  // Shared with the thread, which is left alone where a write() never returns.
  std::shared_ptr<Impl> impl_;
  std::thread thread_;
};

}  // namespace quire
