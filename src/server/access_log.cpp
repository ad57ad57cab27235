#include "server/access_log.h"

#include <unistd.h>

#include <chrono>

#include "core/log.h"
#include "server/protocol/json.h"

namespace quire::server {

LineWriter::Options log_options(Registry& registry, const std::string& log, std::string name) {
  Counter& dropped =
      registry.counter("quire:log_lines_dropped_total",
                       "Lines of logs that were dropped because they could not be written in time.", {{"log", log}});
  return {.name = std::move(name),
          .tell = [](std::string_view message) { log_warning(message); },
          .count_dropped = [&dropped](int64_t lines) { dropped.add(static_cast<double>(lines)); },
          .gap = [](int64_t lines) { return fmt::format("{{\"dropped\":{}}}", lines); }};
}

Result<AccessLog> AccessLog::open(const std::string& where, Registry& registry) {
  AccessLog log;
  if (where == "off") return log;
  LineWriter::Options options = log_options(registry, "access", "--access-log " + where);
  if (where == "-")
    log.writer_ = LineWriter::to(STDERR_FILENO, std::move(options));
  else {
    QUIRE_TRY(log.writer_, LineWriter::open(where, std::move(options)).context("--access-log"));
  }
  return log;
}

void AccessLog::reopen() {
  if (writer_) writer_->reopen();
}

void AccessLog::write(const Line& line) {
  if (!writer_) return;
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
  writer_->write(dump(j));
}

}  // namespace quire::server
