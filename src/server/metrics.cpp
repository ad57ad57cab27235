#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/result.h"

namespace quire::server {
namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && quotes)
      out += "\\\"";
    else
      out += c;
  }
  return out;
}

std::string number(double x) {
  if (std::isinf(x)) return x > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", x);  // the shortest text that reads back the same
}

void print_histogram(const std::string& name, const std::string& labels, const Histogram& h, std::string& out) {
  const Histogram::Snapshot s = h.snapshot();
  const std::string lead = labels.empty() ? "" : labels + ",";
  uint64_t below = 0;
  for (size_t i = 0; i < s.counts.size(); ++i) {
    below += s.counts[i];
    const double bound = i < h.bounds().size() ? h.bounds()[i] : INFINITY;
    out += fmt::format("{}_bucket{{{}le=\"{}\"}} {}\n", name, lead, number(bound), below);
  }
  const std::string braces = labels.empty() ? "" : "{" + labels + "}";
  out += fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, braces, number(s.sum), name, braces, s.count);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)) {
  data_.counts.resize(bounds_.size() + 1);
}

void Histogram::observe(double x) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), x) - bounds_.begin();
  const std::lock_guard lock(mutex_);
  ++data_.counts[static_cast<size_t>(bucket)];
  data_.sum += x;
  ++data_.count;
}

Histogram::Snapshot Histogram::snapshot() const {
  const std::lock_guard lock(mutex_);
  return data_;
}

Registry::Series& Registry::series(std::string_view name, std::string_view help, Kind kind, const Labels& labels,
                                   bool& fresh) {
  std::string rendered;
  for (const auto& [key, value] : labels)
    rendered += fmt::format("{}{}=\"{}\"", rendered.empty() ? "" : ",", key, escaped(value, true));
  auto family = std::find_if(families_.begin(), families_.end(), [&](const Family& f) { return f.name == name; });
  if (family == families_.end()) {
    families_.push_back({std::string(name), std::string(help), kind, {}});
    family = families_.end() - 1;
  }
  QUIRE_CHECK(family->kind == kind, "the metric {} is of two kinds", name);
  for (Series& s : family->series)
    if (s.labels == rendered) {
      fresh = false;
      return s;
    }
  fresh = true;
  return family->series.emplace_back(Series{.labels = std::move(rendered)});
}

Counter& Registry::counter(std::string_view name, std::string_view help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  bool fresh = false;
  Series& s = series(name, help, Kind::kCounter, labels, fresh);
  if (fresh) s.counter = std::make_unique<Counter>();
  return *s.counter;
}

Gauge& Registry::gauge(std::string_view name, std::string_view help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  bool fresh = false;
  Series& s = series(name, help, Kind::kGauge, labels, fresh);
  if (fresh) s.gauge = std::make_unique<Gauge>();
  return *s.gauge;
}

Histogram& Registry::histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                               const Labels& labels) {
  const std::lock_guard lock(mutex_);
  bool fresh = false;
  Series& s = series(name, help, Kind::kHistogram, labels, fresh);
  if (fresh) s.histogram = std::make_unique<Histogram>(bounds);
  return *s.histogram;
}

std::string Registry::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const Family& f : families_) {
    const char* type = f.kind == Kind::kCounter ? "counter" : f.kind == Kind::kGauge ? "gauge" : "histogram";
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", f.name, escaped(f.help, false), f.name, type);
    for (const Series& s : f.series) {
      const std::string braces = s.labels.empty() ? "" : "{" + s.labels + "}";
      if (s.counter) out += fmt::format("{}{} {}\n", f.name, braces, number(s.counter->value()));
      if (s.gauge) out += fmt::format("{}{} {}\n", f.name, braces, number(s.gauge->value()));
      if (s.histogram) print_histogram(f.name, s.labels, *s.histogram, out);
    }
  }
  return out;
}

std::vector<double> buckets_1_2_5(int64_t largest) {
  std::vector<double> bounds;
  for (int64_t decade = 1; decade <= largest; decade *= 10)
    for (const int64_t m : {1, 2, 5})
      if (decade * m <= largest) bounds.push_back(static_cast<double>(decade * m));
  return bounds;
}

}  // namespace quire::server
