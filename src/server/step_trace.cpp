#include "server/step_trace.h"

#include <utility>

namespace quire::server {

std::string step_line(const StepRecord& r, int engine) {
  std::string deferred;
  for (int i = 0; i < kDeferrals; ++i)
    if (const int32_t n = r.deferred[static_cast<size_t>(i)]; n > 0)
      deferred += fmt::format("{}\"{}\":{}", deferred.empty() ? "" : ",", deferral_name(static_cast<Deferral>(i)), n);
  std::string pools;
  for (const PoolUse& p : r.pools)
    pools += fmt::format("{}\"{}\":{{\"free\":{},\"cached\":{},\"used\":{}}}", pools.empty() ? "" : ",", p.name, p.free,
                         p.cached, p.used);
  return fmt::format(
      "{{\"engine\":{},\"step\":{},\"time\":{:.6f},\"decode_rows\":{},\"drafts\":{},\"accepted\":{},\"prompt_tokens\":{"
      "},\"running\":"
      "{},\"waiting\":{},\"queued\":{},\"admitted\":{},\"deferred\":{{{}}},\"first_tokens\":{},\"skipped\":{},"
      "\"pools\":{{{}}},\"swapped_out\":{},\"swapped_in\":{},\"host_stored\":{},\"host_loaded\":{},\"host_seconds\":{:."
      "6f},\"device_seconds\":{:.6f}}}",
      engine, r.step, r.time, r.decode_rows, r.drafts, r.accepted, r.prompt_rows, r.running, r.waiting, r.queued,
      r.admitted, deferred, r.first_tokens, r.skipped, pools, r.swapped_out, r.swapped_in, r.host_stored, r.host_loaded,
      r.host_seconds, r.device_seconds);
}

Result<std::unique_ptr<StepTrace>> StepTrace::open(const std::string& path, LineWriter::Options options) {
  QUIRE_TRY(std::unique_ptr<LineWriter> writer, LineWriter::open(path, std::move(options)));
  return std::unique_ptr<StepTrace>(new StepTrace(std::move(writer)));
}

void StepTrace::add(const StepRecord& record, int engine) {
  writer_->write(step_line(record, engine));
}

void StepTrace::reopen() {
  writer_->reopen();
}

}  // namespace quire::server
