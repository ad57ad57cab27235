// One line of JSON for each request, on standard error or into a file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/line_writer.h"
#include "server/metrics.h"
#include "server/responder.h"

namespace quire::server {

// What a log of the server does with lines that cannot be written in time: they are counted in the metric
// quire:log_lines_dropped_total{log}, and {"dropped": N} stands where they came too fast. `name` is for messages.
LineWriter::Options log_options(Registry& registry, const std::string& log, std::string name);

class AccessLog {
 public:
  // `where`: "-" for standard error, "off" for nothing, else a file to append to. `registry` must outlive it.
  static Result<AccessLog> open(const std::string& where, Registry& registry);
  AccessLog() = default;  // off

  struct Line {
    std::string_view peer, method, path;
    int status = 0;     // 0: nothing was sent
    int64_t bytes = 0;  // of the body
    double seconds = 0.0;
    std::string_view note;  // what went wrong with the connection, or empty
    const RequestRecord& record;
  };
  // Any thread; waits for nobody.
  void write(const Line& line);
  // Any thread: see LineWriter.
  void reopen();

 private:
  std::unique_ptr<LineWriter> writer_;
};

}  // namespace quire::server
