// One line of JSON for each request, on standard error or into a file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/result.h"
#include "server/responder.h"

namespace spdlog {
class logger;
}

namespace quire::server {

class AccessLog {
 public:
  // `where`: "-" for standard error, "off" for nothing, else a file to append to.
  static Result<AccessLog> open(const std::string& where);
  AccessLog() = default;  // off

  struct Line {
    std::string_view peer, method, path;
    int status = 0;     // 0: nothing was sent
    int64_t bytes = 0;  // of the body
    double seconds = 0.0;
    std::string_view note;  // what went wrong with the connection, or empty
    const RequestRecord& record;
  };
  void write(const Line& line);

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace quire::server
