#include "core/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace quire {
namespace {

constexpr int kArenas = 4;
// What is at least as large is mapped. Without a fixed number malloc raises it to the size of what was freed, up to 32
// MiB, and the bodies of requests would lie among everything else.
constexpr int kMapped = 1 << 20;
constexpr int kTrimmed = 8 << 20;  // free memory at the end of an arena that goes at once

constexpr std::chrono::seconds kLook{2};
constexpr int kMeasured = 5;  // at each so many looks: caches of many GiB take some time
constexpr int64_t kMuch = int64_t{32} << 20;

}  // namespace

HeapUse heap_use() {
  const struct mallinfo2 all = mallinfo2();
  return {.used = static_cast<int64_t>(all.uordblks + all.hblkhd), .free = static_cast<int64_t>(all.fordblks)};
}

int64_t resident_memory() {
  long pages = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
    std::fclose(f);
  }
  return int64_t{pages} * sysconf(_SC_PAGESIZE);
}

void prepare_heap() {
  mallopt(M_ARENA_MAX, kArenas);
  mallopt(M_MMAP_THRESHOLD, kMapped);
  mallopt(M_TRIM_THRESHOLD, kTrimmed);
}

HeapKeeper::HeapKeeper(std::function<void()> measure) : measure_(std::move(measure)) {
  thread_ = std::thread([this] { work(); });
}

HeapKeeper::~HeapKeeper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void HeapKeeper::work() {
  std::unique_lock lock(mutex_);
  int64_t kept = 0;
  for (int look = 0; !wake_.wait_for(lock, kLook, [&] { return stop_; }); ++look) {
    if (measure_ && look % kMeasured == 0) measure_();
    const int64_t resident = resident_memory();
    kept = std::min(kept, resident);
    if (resident - kept < kMuch || heap_use().free < kMuch) continue;
    malloc_trim(0);
    kept = resident_memory();
  }
}

}  // namespace quire
