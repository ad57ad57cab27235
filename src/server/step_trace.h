// A record of every step, as one line of JSON each, in a file. A thread of its own writes them: the engine never waits for
// the disk.
#pragma once

#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/result.h"
#include "engine/step_record.h"

namespace quire::server {

class StepTrace {
 public:
  // Appends to a file. At most `most` records wait to be written; further ones are dropped, and a line {"dropped": N} tells
  // how many were. A file that can no longer be written is reported in the log, once, and nothing more is recorded.
  static Result<std::unique_ptr<StepTrace>> open(const std::string& path, size_t most = 16384);
  ~StepTrace();  // when all that wait are written
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Any thread; waits for nobody.
  void add(const StepRecord& record);
  bool failed() const;

 private:
  StepTrace(std::string path, std::FILE* file, size_t most);
  void run();
  bool write(const std::vector<StepRecord>& records, int64_t dropped);

  std::string path_;
  std::FILE* file_;
  size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StepRecord> waiting_;
  int64_t dropped_ = 0;  // since waiting_ was full
  bool stopping_ = false, failed_ = false;
  std::thread thread_;
};

// The line of a record, without its end.
std::string step_line(const StepRecord& record);

}  // namespace quire::server
