// What tests and benchmarks on a GPU share: buffers with guards, random values, timing by events, this run's limits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "core/cuda/check.h"

#define CUDA_OK(call)                                                     \
  do {                                                                    \
    const ::quire::Status cuda_ok_ = ::quire::cuda::check((call), #call); \
    ASSERT_TRUE(cuda_ok_.ok()) << cuda_ok_.error().message;               \
  } while (false)

namespace quire::cuda_test {

// Aborts the test program: for helpers that return values.
inline void must(cudaError_t code, const char* what) {
  const Status s = cuda::check(code, what);
  QUIRE_CHECK(s.ok(), "{}", s.error().message);
}

// Device memory between guards of 256 bytes. Starts as 0xff bytes (NaN in bf16 and float32): an element that a kernel
// forgets fails.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : count_(count) {
    must(cudaMalloc(&base_, bytes() + 2 * kGuard), "cudaMalloc");
    must(cudaMemset(base_, 0xff, bytes() + 2 * kGuard), "cudaMemset");
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) { upload(host); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  DeviceBuffer(DeviceBuffer&& o) noexcept : base_(std::exchange(o.base_, nullptr)), count_(o.count_) {}
  ~DeviceBuffer() { cudaFree(base_); }

  T* data() const { return reinterpret_cast<T*>(static_cast<char*>(base_) + kGuard); }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  void poison() { must(cudaMemset(base_, 0xff, bytes() + 2 * kGuard), "cudaMemset"); }
  void upload(const std::vector<T>& host) {
    QUIRE_CHECK(host.size() == count_, "{} elements for a buffer of {}", host.size(), count_);
    if (count_ > 0) must(cudaMemcpy(data(), host.data(), bytes(), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> download() const {
    std::vector<T> host(count_);
    if (count_ > 0) must(cudaMemcpy(host.data(), data(), bytes(), cudaMemcpyDeviceToHost), "download");
    return host;
  }
  bool guards_intact() const {
    std::vector<unsigned char> all(bytes() + 2 * kGuard);
    must(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost), "download");
    for (size_t i = 0; i < kGuard; ++i)
      if (all[i] != 0xff || all[all.size() - 1 - i] != 0xff) return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  void* base_ = nullptr;
  size_t count_;
};

// Median milliseconds of run() over `repeats`, each alone between two events, after two warm-up runs. `between` runs
// before each (flushing the L2, rotating inputs) and is not timed.
inline float median_ms(const std::function<void()>& run, int repeats = 21, const std::function<void()>& between = {}) {
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < repeats + 2; ++i) {
    if (between) between();
    must(cudaEventRecord(begin), "record");
    run();
    must(cudaEventRecord(end), "record");
    must(cudaEventSynchronize(end), "synchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 2) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace quire::cuda_test
