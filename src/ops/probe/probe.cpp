#include "ops/probe/probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>

#include "core/cpu.h"
#include "core/result.h"
#include "ops/probe/kernels.h"

namespace quire {
namespace {

double seconds_of(ThreadPool& pool, const std::function<void(int)>& work) {
  const auto begin = std::chrono::steady_clock::now();
  pool.run(work);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{256} << 20, kPiece = int64_t{1} << 18, kRepeats = 5;
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
  const auto read = cpu_features().avx512 ? probe::read_streams_avx512 : probe::read_streams_avx2;
  double best = 0.0;
  std::atomic<uint64_t> sink{0};
  for (const Way way : {Way{1, 0}, Way{4, 512}, Way{4, 1024}, Way{8, 1024}, Way{16, 1024}, Way{16, 2048}})
    for (int64_t r = 0; r < kRepeats; ++r) {
      std::atomic<int64_t> next{0};
      const double s = seconds_of(pool, [&](int) {
        uint64_t sum = 0;
        for (;;) {
          const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
          if (piece >= kBytes / kPiece) break;
          for (int64_t o = 0; o < kPiece; o += way.streams * kSegment)
            sum += read(data + piece * kPiece + o, kSegment, way.streams, way.ahead);
        }
        sink.fetch_add(sum, std::memory_order_relaxed);
      });
      best = std::max(best, static_cast<double>(kBytes) / s);
    }
  munmap(map, kBytes);
  return best;
}

double measure_bf16_peak(ThreadPool& pool) {
  const CpuFeatures& cpu = cpu_features();
  const auto multiply = cpu.amx_bf16      ? probe::multiply_amx
                        : cpu.avx512_bf16 ? probe::multiply_avx512
                                          : probe::multiply_avx2;
  constexpr int64_t kRounds = 20000, kRepeats = 20;
  double best = 0.0;
  for (int64_t r = 0; r < kRepeats; ++r) {
    std::atomic<double> operations{0.0};
    const double s = seconds_of(pool, [&](int) { operations.fetch_add(multiply(kRounds)); });
    best = std::max(best, operations.load() / s);
  }
  return best;
}

}  // namespace quire
