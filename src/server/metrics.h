// Counters, gauges and histograms, and their text for Prometheus (exposition format 0.0.4).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::server {

class Counter {
 public:
  void add(double x = 1.0) { value_.fetch_add(x, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class Gauge {
 public:
  void set(double x) { value_.store(x, std::memory_order_relaxed); }
  void add(double x) { value_.fetch_add(x, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // upper bounds, increasing; +Inf is implied
  void observe(double x);

  struct Snapshot {
    std::vector<uint64_t> counts;  // per bucket, the last one up to +Inf; not cumulative
    double sum = 0.0;
    uint64_t count = 0;
  };
  Snapshot snapshot() const;
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  std::vector<double> bounds_;
  mutable std::mutex mutex_;
  Snapshot data_;
};

using Labels = std::vector<std::pair<std::string, std::string>>;

// Owns metrics; references stay valid. A metric is made when first asked for, and found again by name and labels.
// Any thread.
class Registry {
 public:
  Counter& counter(std::string_view name, std::string_view help, const Labels& labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  Histogram& histogram(std::string_view name, std::string_view help, const std::vector<double>& bounds,
                       const Labels& labels = {});

  std::string text() const;

 private:
  enum class Kind { kCounter, kGauge, kHistogram };
  struct Series {
    std::string labels;  // rendered: a="b",c="d"
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    std::string name, help;
    Kind kind;
    std::deque<Series> series;
  };
  Series& series(std::string_view name, std::string_view help, Kind kind, const Labels& labels, bool& fresh);

  mutable std::mutex mutex_;
  std::deque<Family> families_;
};

// 1, 2, 5, 10, 20, 50, ... up to `largest`: vLLM's buckets for numbers of tokens.
std::vector<double> buckets_1_2_5(int64_t largest);

}  // namespace quire::server
