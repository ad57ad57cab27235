#include "core/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "core/escape.h"
#include "core/output.h"

namespace quire {
namespace {

struct Level {
  std::string_view name;
  spdlog::level::level_enum value;
};
constexpr Level kLevels[] = {
    {"trace", spdlog::level::trace},  {"debug", spdlog::level::debug}, {"info", spdlog::level::info},
    {"warning", spdlog::level::warn}, {"error", spdlog::level::err},   {"off", spdlog::level::off},
};

// To wherever the program's other messages go; on a terminal the level is coloured.
class MessageSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (line.ends_with('\n')) line.pop_back();
    const bool coloured = terminal_ && message.color_range_end > message.color_range_start;
    if (coloured) {
      line.insert(message.color_range_end, "\x1b[0m");
      line.insert(message.color_range_start, message.level >= spdlog::level::err    ? "\x1b[1;31m"
                                             : message.level == spdlog::level::warn ? "\x1b[1;33m"
                                                                                    : "\x1b[32m");
    }
    put_message(line);
  }
  void flush_() override {}

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
};

}  // namespace

std::string log_level_names() {
  std::string names;
  for (const Level& l : kLevels) names += fmt::format("{}{}", names.empty() ? "" : ", ", l.name);
  return names;
}

Status set_up_logging(std::string_view level) {
  for (const Level& l : kLevels) {
    if (l.name != level) continue;
    auto logger = std::make_shared<spdlog::logger>("quire", std::make_shared<MessageSink>());
    logger->set_pattern("[%H:%M:%S.%e] [%^%l%$] %v");
    logger->set_level(l.value);
    spdlog::set_default_logger(std::move(logger));
    return {};
  }
  return request_error("no log level '{}'; there are {}", level, log_level_names());
}

void log_warning(std::string_view message) {
  spdlog::warn("{}", escaped(message));
}

void log_error(std::string_view message) {
  spdlog::error("{}", escaped(message));
}

void log_info(std::string_view message) {
  spdlog::info("{}", escaped(message));
}

}  // namespace quire
