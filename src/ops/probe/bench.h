// Pieces shared by the operator benchmarks (bench.cpp of each folder): roofs, weights larger than the caches,
// counters with shares of the roof, and main().
#pragma once

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/float.h"
#include "ops/op.h"
#include "ops/probe/bench_flags.h"
#include "ops/probe/probe.h"
#include "quant/format.h"

namespace quire::bench {

inline ThreadPool& pool() {
  static ThreadPool p(available_cpus());
  return p;
}
inline double read_roof() {
  static const double r = measure_read_bandwidth(pool());
  return r;
}
inline double bf16_roof() {
  static const double r = measure_bf16_peak(pool());
  return r;
}

// At least 256 MiB of valid blocks of a type: copies of one small random matrix, so that every call can take
// weights that no cache holds.
class ColdWeights {
 public:
  ColdWeights(DType type, int64_t rows, int64_t cols, int64_t experts = 1)
      : type_(type), rows_(rows), cols_(cols), experts_(experts), bytes_(dtype_bytes(type, rows * cols * experts)) {
    constexpr int64_t kBytes = int64_t{256} << 20, kSample = 1 << 16;
    copies_ = std::max<int64_t>(1, kBytes / bytes_);
    const int64_t all = copies_ * bytes_;
    data_ = static_cast<std::byte*>(
        mmap(nullptr, static_cast<size_t>(all), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(data_, static_cast<size_t>(all), MADV_HUGEPAGE);
    std::vector<std::byte> sample(static_cast<size_t>(dtype_bytes(type, kSample)));
    if (quant::can_encode(type)) {
      std::vector<float> values(kSample);
      uint32_t state = 1;
      for (float& v : values) {
        state = state * 1664525u + 1013904223u;
        v = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
      }
      quant::encode_row(type, values.data(), kSample, sample.data());
    }
    for (int64_t at = 0; at < all; at += static_cast<int64_t>(sample.size()))
      std::memcpy(data_ + at, sample.data(), std::min(sample.size(), static_cast<size_t>(all - at)));
  }
  ~ColdWeights() { munmap(data_, static_cast<size_t>(copies_ * bytes_)); }
  ColdWeights(const ColdWeights&) = delete;
  ColdWeights& operator=(const ColdWeights&) = delete;

  Weight next() {
    turn_ = (turn_ + 1) % copies_;
    return at(turn_);
  }
  std::vector<Weight> all() const {
    std::vector<Weight> all;
    for (int64_t i = 0; i < copies_; ++i) all.push_back(at(i));
    return all;
  }
  int64_t bytes() const { return bytes_; }

 private:
  Weight at(int64_t i) const { return {type_, data_ + i * bytes_, rows_, cols_, experts_, nullptr}; }

  DType type_;
  int64_t rows_, cols_, experts_, bytes_, copies_ = 0, turn_ = 0;
  std::byte* data_ = nullptr;
};

// Counters: the rates at which iterations of so much traffic move and compute.
inline void report_rates(benchmark::State& state, const Traffic& each) {
  const auto n = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(n * static_cast<double>(each.bytes) / 1e9, Counter::kIsRate);
  state.counters["TFLOP/s"] = Counter(n * static_cast<double>(each.flops) / 1e12, Counter::kIsRate);
}

// The same, and their shares of what all threads of pool() reach.
inline void report(benchmark::State& state, const Traffic& each) {
  report_rates(state, each);
  const auto n = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["%read"] = Counter(100 * n * static_cast<double>(each.bytes) / read_roof(), Counter::kIsRate);
  state.counters["%bf16"] = Counter(100 * n * static_cast<double>(each.flops) / bf16_roof(), Counter::kIsRate);
}

// Launches kernel until the time is up, on args() of each turn, and reports its operator's traffic. What args() does
// counts, so it should be little.
template <class Args, class Make>
void run(benchmark::State& state, const Operator<Args>& op, const Kernel<Args>& kernel, Make&& args) {
  Workspace workspace;
  const OpContext ctx{pool(), workspace};
  read_roof();
  bf16_roof();
  if (!kernel.fits(ctx.machine, args())) return state.SkipWithError("does not fit");
  for (auto _ : state) kernel.launch(ctx, args());
  report(state, op.traffic(args()));
}

// The operator's kernels that this CPU runs, but for the reference.
template <class Args>
std::vector<Kernel<Args>> kernels(const Operator<Args>& op) {
  std::vector<Kernel<Args>> list;
  for (const Kernel<Args>& k : op.kernels.first(op.kernels.size() - 1))
    if (reaches(Machine{}, k.needs)) list.push_back(k);
  return list;
}

template <class Fn>
benchmark::internal::Benchmark* add(const std::string& name, Fn&& fn) {
  return benchmark::RegisterBenchmark(name.c_str(), std::forward<Fn>(fn))->UseRealTime()->MinTime(0.2);
}

// main() of a benchmark: add_all() registers what the CPU, or the level of it that --cpu leaves, can run.
inline int main(int argc, char** argv, void (*add_all)()) {
  if (!take_cpu_flag(argc, argv)) return 2;
  add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace quire::bench
