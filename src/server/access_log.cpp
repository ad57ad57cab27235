#include "server/access_log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "server/protocol/json.h"

namespace quire::server {

Result<AccessLog> AccessLog::open(const std::string& where) {
  AccessLog log;
  if (where == "off") return log;
  try {
    std::shared_ptr<spdlog::sinks::sink> sink;
    if (where == "-")
      sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    else
      sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(where, false);
    log.logger_ = std::make_shared<spdlog::logger>("access", std::move(sink));
  } catch (const spdlog::spdlog_ex& e) {
    return request_error("access log: {}", e.what());
  }
  log.logger_->set_pattern("%v");
  log.logger_->flush_on(spdlog::level::info);
  return log;
}

void AccessLog::write(const Line& line) {
  if (!logger_) return;
  constexpr size_t kMaxPath = 256;
  const RequestRecord& r = line.record;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Json j = {{"time", std::chrono::duration<double>(now).count()},
            {"request_id", r.id},
            {"peer", std::string(line.peer)},
            {"method", std::string(line.method)},
            {"path", std::string(line.path.substr(0, kMaxPath))},
            {"status", line.status},
            {"bytes", line.bytes},
            {"seconds", line.seconds}};
  if (!r.trace.empty()) j["traceparent"] = r.trace;
  if (r.key > 0) j["key"] = r.key;
  if (!r.model.empty()) j["model"] = r.model;
  if (r.prompt_tokens >= 0) j["prompt_tokens"] = r.prompt_tokens;
  if (r.cached_tokens >= 0) j["cached_tokens"] = r.cached_tokens;
  if (!r.prefix_miss.empty()) j["prefix_miss"] = r.prefix_miss;
  if (r.diverged_at >= 0) j["diverged_at"] = r.diverged_at;
  if (r.generated_tokens >= 0) j["completion_tokens"] = r.generated_tokens;
  if (r.first_token_seconds >= 0) j["first_token_seconds"] = r.first_token_seconds;
  if (!r.finish.empty()) j["finish"] = r.finish;
  if (!line.note.empty()) j["note"] = std::string(line.note);
  logger_->info("{}", dump(j));
}

}  // namespace quire::server
