#include "lab/snapshot/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace quire::cli::snapshot {
namespace {

using Out = nlohmann::ordered_json;

Out caches_json(const Hardware& h) {
  Out all = Out::array();
  for (const CacheLevel& c : h.caches) all.push_back({{"name", c.name}, {"bytes", c.bytes}, {"count", c.count}});
  return all;
}

Out gpus_json(const Hardware& h) {
  Out all = Out::array();
  for (const Gpu& g : h.gpus)
    all.push_back({{"name", g.name},
                   {"compute_capability", g.capability},
                   {"multiprocessors", g.multiprocessors},
                   {"memory", g.memory},
                   {"copy_bandwidth", g.copy_bandwidth},
                   {"kernels", g.kernels},
                   {"unusable", g.unusable},
                   {"driver", g.driver},
                   {"link", g.link},
                   {"power_limit", g.power_limit},
                   {"links", g.links}});
  return all;
}

Out hardware_json(const Hardware& h) {
  return {{"cpu", h.cpu},
          {"cpu_features", h.cpu_features},
          {"system", h.system},
          {"cpus", h.cpus},
          {"usable_cpus", h.usable_cpus},
          {"caches", caches_json(h)},
          {"memory", h.memory},
          {"available_memory", h.available_memory},
          {"group_memory_limit", h.group_memory_limit},
          {"group_cpu_quota", h.group_cpu_quota},
          {"load_average", h.load_average},
          {"read_bandwidth", h.read_bandwidth},
          {"bf16_peak", h.bf16_peak},
          {"gpus", gpus_json(h)},
          {"no_gpu", h.no_gpu}};
}

Out figure_json(const Figure& f) {
  Out values = Out::array(), compute = Out::array(), memory = Out::array();
  for (const Reading& r : f.readings) {
    values.push_back(r.value);
    compute.push_back(r.compute);
    memory.push_back(r.memory);
  }
  return {{"name", f.name},   {"unit", f.unit},     {"more_is_better", f.more_is_better},
          {"values", values}, {"compute", compute}, {"memory", memory}};
}

Out quality_json(const Quality& q) {
  if (q.text.empty()) return nullptr;
  Out j = {{"text", q.text}, {"windows", q.windows}, {"window", q.window}, {"perplexity", q.perplexity}};
  if (!q.reference.empty())
    j["reference"] = {{"name", q.reference},
                      {"perplexity", q.reference_perplexity},
                      {"kl_mean", q.kl_mean},
                      {"kl_p99", q.kl_p99},
                      {"top1_agreement", q.top1_agreement}};
  return j;
}

}  // namespace

std::string_view gate_result_name(GateResult r) {
  switch (r) {
    case GateResult::kPassed:
      return "passed";
    case GateResult::kFailed:
      return "failed";
    case GateResult::kSkipped:
      return "skipped";
  }
  return "unknown";
}

int Snapshot::count(GateResult r) const {
  return static_cast<int>(std::count_if(gates.begin(), gates.end(), [r](const Gate& g) { return g.result == r; }));
}

Out to_json(const Snapshot& s) {
  Out j = {{"schema", kSchema},    {"program", s.program},
           {"time", s.time},       {"model", s.model},
           {"device", s.device},   {"fingerprint", s.fingerprint},
           {"threads", s.threads}, {"quick", s.quick},
           {"seconds", s.seconds}, {"hardware", hardware_json(s.hardware)}};
  Out& gates = j["gates"] = Out::array();
  for (const Gate& g : s.gates)
    gates.push_back({{"name", g.name}, {"what", g.what}, {"result", gate_result_name(g.result)}, {"detail", g.detail}});
  Out& conformance = j["conformance"] = Out::array();
  for (const ConformanceCount& c : s.conformance)
    conformance.push_back(
        {{"operator", c.op}, {"kernel", c.kernel}, {"passed", c.passed}, {"failed", c.failed}, {"skipped", c.skipped}});
  Out& figures = j["figures"] = Out::array();
  for (const Figure& f : s.figures) figures.push_back(figure_json(f));
  Out& buckets = j["buckets"] = Out::array();
  for (const Bucket& b : s.buckets)
    buckets.push_back({{"phase", b.phase},
                       {"operator", b.op},
                       {"calls", b.calls},
                       {"seconds", b.seconds},
                       {"bytes", b.bytes},
                       {"flops", b.flops}});
  j["buckets_missing"] = s.buckets_missing;
  Out& loads = j["loads"] = Out::array();
  for (const ServedLoad& l : s.loads) {
    Out one = {{"server", l.server}};
    one.update(Out(load::load_json(l.summary)));
    loads.push_back(std::move(one));
  }
  Out& memory = j["memory"] = Out::array();
  for (const MemorySample& m : s.memory)
    memory.push_back({{"seconds", m.seconds}, {"stage", m.stage}, {"resident", m.resident}, {"gpu_used", m.gpu_used}});
  j["quality"] = quality_json(s.quality);
  return j;
}

}  // namespace quire::cli::snapshot
