#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "core/escape.h"

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

}  // namespace

std::string log_level_names() {
  std::string names;
  for (const Level& l : kLevels) names += fmt::format("{}{}", names.empty() ? "" : ", ", l.name);
  return names;
}

Status set_up_logging(std::string_view level) {
  for (const Level& l : kLevels) {
    if (l.name != level) continue;
    auto logger =
        std::make_shared<spdlog::logger>("quire", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
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
