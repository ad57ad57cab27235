#include "cli/snapshot/record.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/escape.h"
#include "core/json_builder.h"

namespace quire::cli::snapshot {
namespace {

using Out = nlohmann::ordered_json;
using In = nlohmann::json;

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

// ---- Reading ----

constexpr size_t kMostFigures = 2000, kMostReadings = 10000, kMostText = 4096;

// Members of an object of a stranger. The first thing that is wrong is kept, and everything after it reads as empty.
class Reader {
 public:
  Reader(const In& object, std::string path, std::optional<Error>& error)
      : object_(object), path_(std::move(path)), error_(error) {
    if (!object.is_object()) fail("", "is no object");
  }
  std::string text(const char* key) const {
    const In* const v = find(key);
    if (v == nullptr) return {};
    if (!v->is_string() || v->get_ref<const std::string&>().size() > kMostText)
      return fail(key, fmt::format("is no text of at most {} bytes", kMostText)), std::string();
    return *v;
  }
  bool flag(const char* key) const {
    const In* const v = find(key);
    if (v == nullptr) return false;
    if (!v->is_boolean()) return fail(key, "is neither true nor false"), false;
    return *v;
  }
  std::vector<double> numbers(const char* key) const {
    const In* const v = find(key);
    std::vector<double> all;
    if (v == nullptr) return all;
    if (!v->is_array() || v->size() > kMostReadings)
      return fail(key, fmt::format("is no array of at most {} numbers", kMostReadings)), all;
    for (const In& x : *v) {
      if (!x.is_number() || !std::isfinite(x.get<double>()) || x.get<double>() < 0)
        return fail(key, "holds what is no number of at least 0"), all;
      all.push_back(x);
    }
    return all;
  }
  const In* array(const char* key, size_t most) const {
    const In* const v = find(key);
    if (v == nullptr) return nullptr;
    if (!v->is_array() || v->size() > most)
      return fail(key, fmt::format("is no array of at most {} entries", most)), nullptr;
    return v;
  }
  const In* find(const char* key) const {
    if (!object_.is_object()) return nullptr;
    const auto at = object_.find(key);
    if (at != object_.end()) return &*at;
    fail("", fmt::format("has no \"{}\"", key));
    return nullptr;
  }
  // What is wrong with a member, or with the object itself.
  void fail(std::string_view member, const std::string& what) const {
    if (error_) return;
    std::string subject = path_;
    if (!member.empty()) subject += (subject.empty() ? "" : ".") + std::string(member);
    error_ = request_error("{} {}", subject.empty() ? "it" : subject, what);
  }

 private:
  const In& object_;
  std::string path_;
  std::optional<Error>& error_;
};

Figure read_figure(const Reader& r) {
  Figure f{.name = r.text("name"), .unit = r.text("unit"), .more_is_better = r.flag("more_is_better")};
  const std::vector<double> values = r.numbers("values"), compute = r.numbers("compute"), memory = r.numbers("memory");
  if (compute.size() != values.size() || memory.size() != values.size())
    return r.fail("", "has values and calibrations of different numbers"), f;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) return r.fail("values", "holds a 0"), f;
    f.readings.push_back({values[i], compute[i], memory[i]});
  }
  return f;
}

Gate read_gate(const Reader& r) {
  Gate g{.name = r.text("name"), .what = r.text("what"), .detail = r.text("detail")};
  const std::string result = r.text("result");
  for (const GateResult x : {GateResult::kPassed, GateResult::kFailed, GateResult::kSkipped})
    if (gate_result_name(x) == result) return g.result = x, g;
  return r.fail("result", "is neither passed, failed nor skipped"), g;
}

std::string shown(std::string_view text) {
  return escaped(text, 60);
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

std::vector<double> Figure::values() const {
  std::vector<double> all;
  for (const Reading& r : readings) all.push_back(r.value);
  return all;
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
    one.update(Out(server::load_json(l.summary)));
    loads.push_back(std::move(one));
  }
  Out& memory = j["memory"] = Out::array();
  for (const MemorySample& m : s.memory)
    memory.push_back({{"seconds", m.seconds}, {"stage", m.stage}, {"resident", m.resident}, {"gpu_used", m.gpu_used}});
  j["quality"] = quality_json(s.quality);
  return j;
}

Result<Snapshot> parse_snapshot(std::string_view text, const std::string& name) {
  const std::string file = escaped(name, 200);
  JsonBuilder<In, std::hash<std::string>> builder({.max_depth = 16, .max_values = 1 << 22}, shown);
  if (!In::sax_parse(text, &builder)) return request_error("{}: no JSON of a snapshot: {}", file, builder.error());
  In document = builder.take();
  std::optional<Error> error;
  Snapshot s;
  const Reader r(document, "", error);
  if (const std::string schema = r.text("schema"); !error && schema != kSchema)
    return request_error("{}: its schema is '{}', and this program reads {}", file, shown(schema), kSchema);
  s.program = r.text("program");
  s.time = r.text("time");
  s.model = r.text("model");
  s.device = r.text("device");
  s.fingerprint = r.text("fingerprint");
  if (const In* const hardware = r.find("hardware")) {
    const Reader h(*hardware, "hardware", error);
    s.hardware.cpu = h.text("cpu");
    s.hardware.cpu_features = h.text("cpu_features");
    if (const In* const gpus = h.array("gpus", 64))
      for (const In& g : *gpus) s.hardware.gpus.push_back({.name = Reader(g, "hardware.gpus", error).text("name")});
  }
  if (const In* const gates = r.array("gates", kMostFigures))
    for (size_t i = 0; i < gates->size(); ++i)
      s.gates.push_back(read_gate(Reader((*gates)[i], fmt::format("gates[{}]", i), error)));
  if (const In* const figures = r.array("figures", kMostFigures))
    for (size_t i = 0; i < figures->size(); ++i)
      s.figures.push_back(read_figure(Reader((*figures)[i], fmt::format("figures[{}]", i), error)));
  dismantle(document);
  if (error) return std::move(*error).context(file);
  return s;
}

}  // namespace quire::cli::snapshot
