// A record of every step, as one line of JSON each, in a file. The engine never waits for the disk.
#pragma once

#include <memory>
#include <string>

#include "core/line_writer.h"
#include "engine/step_record.h"

namespace quire::server {

class StepTrace {
 public:
  // Appends to a file, as `options` say (server/access_log.h: log_options).
  static Result<std::unique_ptr<StepTrace>> open(const std::string& path, LineWriter::Options options);

  // Any thread; waits for nobody. `engine`: of several that serve a model, which one.
  void add(const StepRecord& record, int engine);
  // Any thread: see LineWriter.
  void reopen();

 private:
  explicit StepTrace(std::unique_ptr<LineWriter> writer) : writer_(std::move(writer)) {}

  std::unique_ptr<LineWriter> writer_;
};

// The line of a record, without its end.
std::string step_line(const StepRecord& record, int engine = 0);

}  // namespace quire::server
