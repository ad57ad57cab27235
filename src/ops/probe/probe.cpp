#include "ops/probe/probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>

#include "core/cpu.h"
#include "core/result.h"
#include "ops/probe/kernels.h"

namespace quire {
namespace {

// The statistic of every limit. What is compared with it is the time of whole steps, lucky moments and
// unlucky ones together; the best of many short probes would be a limit of the lucky ones alone
// (docs/benchmarks.md).
template <size_t kCount>
double median(std::array<double, kCount> values) {
  static_assert(kCount % 2 == 1);
  std::nth_element(values.begin(), values.begin() + kCount / 2, values.end());
  return values[kCount / 2];
}

double seconds_of(ThreadPool& pool, const std::function<void(int)>& work) {
  const auto begin = std::chrono::steady_clock::now();
  pool.run(work);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{256} << 20, kPiece = int64_t{1} << 18;
  constexpr size_t kRepeats = 5;
  void* const map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return 0.0;
  madvise(map, kBytes, MADV_HUGEPAGE);
  std::byte* const data = static_cast<std::byte*>(map);
  pool.parallel_for(kBytes / kPiece, 1, [&](int64_t b, int64_t e, int) {
    std::memset(data + b * kPiece, 1, static_cast<size_t>((e - b) * kPiece));
  });

  struct Way {
    int streams;
    int64_t ahead;
  };
  constexpr int64_t kSegment = 4096;  // a page: each stream then has a hardware prefetcher of its own
  auto read = probe::read_streams_avx2;
  if constexpr (kOnX86)
    if (cpu_features().avx512) read = probe::read_streams_avx512;
  constexpr Way kWays[] = {{1, 0}, {4, 512}, {4, 1024}, {8, 1024}, {16, 1024}, {16, 2048}};
  std::array<double, kRepeats> rates[std::size(kWays)];
  std::atomic<uint64_t> sink{0};
  const auto read_all = [&](Way way) {
    std::atomic<int64_t> next{0};
    return seconds_of(pool, [&](int) {
      uint64_t sum = 0;
      for (;;) {
        const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
        if (piece >= kBytes / kPiece) break;
        for (int64_t o = 0; o < kPiece; o += way.streams * kSegment)
          sum += read(data + piece * kPiece + o, kSegment, way.streams, way.ahead);
      }
      sink.fetch_add(sum, std::memory_order_relaxed);
    });
  };
  for (size_t r = 0; r < kRepeats; ++r)  // in turns: a slow moment falls on all ways
    for (size_t w = 0; w < std::size(kWays); ++w) rates[w][r] = static_cast<double>(kBytes) / read_all(kWays[w]);
  munmap(map, kBytes);
  double best = 0.0;
  for (const auto& of_way : rates) best = std::max(best, median(of_way));
  return best;
}

double measure_bf16_peak(ThreadPool& pool) {
  auto multiply = probe::multiply_avx2;
  if constexpr (kOnX86) {
    if (cpu_features().avx512_bf16) multiply = probe::multiply_avx512;
    if (cpu_features().amx_bf16) multiply = probe::multiply_amx;
  }
  constexpr int64_t kRounds = 20000;
  std::array<double, 41> rates;
  for (double& rate : rates) {
    std::atomic<double> operations{0.0};
    const double s = seconds_of(pool, [&](int) { operations.fetch_add(multiply(kRounds)); });
    rate = operations.load() / s;
  }
  return median(rates);
}

}  // namespace quire
