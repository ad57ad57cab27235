#include "server/step_trace.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/log.h"

namespace quire::server {

std::string step_line(const StepRecord& r) {
  std::string deferred;
  for (int i = 0; i < kDeferrals; ++i)
    if (const int32_t n = r.deferred[static_cast<size_t>(i)]; n > 0)
      deferred +=
          fmt::format("{}\"{}\":{}", deferred.empty() ? "" : ",", deferral_name(static_cast<Deferral>(i)), n);
  return fmt::format(
      "{{\"step\":{},\"time\":{:.6f},\"decode_rows\":{},\"prompt_tokens\":{},\"running\":{},\"waiting\":{},"
      "\"queued\":{},\"admitted\":{},\"deferred\":{{{}}},\"first_tokens\":{},\"passed\":{},\"blocks_free\":{}"
      ","
      "\"blocks_cached\":{},\"blocks_used\":{},\"swapped_out\":{},\"swapped_in\":{},\"host_stored\":{},"
      "\"host_loaded\":{},\"host_seconds\":{:.6f},\"device_seconds\":{:.6f}}}",
      r.step, r.time, r.decode_rows, r.prompt_rows, r.running, r.waiting, r.queued, r.admitted, deferred,
      r.first_tokens, r.passed, r.blocks_free, r.blocks_cached, r.blocks_used, r.swapped_out, r.swapped_in,
      r.host_stored, r.host_loaded, r.host_seconds, r.device_seconds);
}

Result<std::unique_ptr<StepTrace>> StepTrace::open(const std::string& path, size_t most) {
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return request_error("{}: cannot be written ({})", path, std::strerror(errno));
  return std::unique_ptr<StepTrace>(new StepTrace(path, file, most));
}

StepTrace::StepTrace(std::string path, std::FILE* file, size_t most)
    : path_(std::move(path)), file_(file), most_(most), thread_([this] { run(); }) {}

StepTrace::~StepTrace() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  std::fclose(file_);
}

void StepTrace::add(const StepRecord& record) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    if (waiting_.size() >= most_) {
      ++dropped_;
      return;
    }
    waiting_.push_back(record);
  }
  changed_.notify_one();
}

bool StepTrace::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

void StepTrace::run() {
  std::vector<StepRecord> records;
  for (;;) {
    int64_t dropped = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      records.clear();
      records.swap(waiting_);
      dropped = std::exchange(dropped_, 0);
    }
    if (write(records, dropped)) continue;
    const int code = errno;
    log_error(fmt::format("--trace-steps {}: cannot be written ({}); no more steps are recorded", path_,
                          std::strerror(code)));
    const std::lock_guard lock(mutex_);
    failed_ = true;
    waiting_.clear();
    return;
  }
}

// What was dropped came after the records.
bool StepTrace::write(const std::vector<StepRecord>& records, int64_t dropped) {
  std::string text;
  for (const StepRecord& r : records) text += step_line(r) + "\n";
  if (dropped > 0) text += fmt::format("{{\"dropped\":{}}}\n", dropped);
  return std::fwrite(text.data(), 1, text.size(), file_) == text.size() && std::fflush(file_) == 0;
}

}  // namespace quire::server
