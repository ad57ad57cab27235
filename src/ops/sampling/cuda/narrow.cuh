// Finding where a sum reaches a target, in the order of some key, without sorting: by digits of the key, most
// significant first, a histogram a digit. Amounts are integers, so sums are exact and the order of threads means
// nothing.
#pragma once

#include <cstdint>

namespace quire::cuda {

inline constexpr int kSelectThreads = 512, kBins = 2048, kBinsPerThread = kBins / kSelectThreads;

// Scratch of one block. Amounts are kept in halves: additions of 32 bits in shared memory are one instruction, of 64 a
// loop.
struct Histogram {
  uint32_t low[kBins], high[kBins], count[kBins];
  unsigned long long before[kSelectThreads / 32];
  unsigned long long left;  // results of the last search
  uint32_t bin, elements;
  bool found;

  __device__ __forceinline__ void clear() {
    __syncthreads();
    for (int i = threadIdx.x; i < kBins; i += kSelectThreads) low[i] = high[i] = count[i] = 0;
    __syncthreads();
  }

  __device__ __forceinline__ void set(int i, unsigned long long x) {
    low[i] = static_cast<uint32_t>(x);
    high[i] = static_cast<uint32_t>(x >> 32);
  }
  __device__ __forceinline__ unsigned long long get(int i) const {
    return static_cast<unsigned long long>(high[i]) << 32 | low[i];
  }
  __device__ __forceinline__ void add(uint32_t i, unsigned long long x, uint32_t elems) {
    const auto part = static_cast<uint32_t>(x);
    const uint32_t carry = atomicAdd(&low[i], part) > ~part ? 1 : 0;
    const uint32_t rest = static_cast<uint32_t>(x >> 32) + carry;
    if (rest != 0) atomicAdd(&high[i], rest);
    atomicAdd(&count[i], elems);
  }

  // The bin in which the running sum reaches `target` (> 0): sets found, bin, its elements, and what of the target is
  // left when the bin begins. Not found if the sum of all is less.
  __device__ __forceinline__ void search(unsigned long long target) {
    if (threadIdx.x == 0) found = false;
    __syncthreads();
    const int first = threadIdx.x * kBinsPerThread, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long mine = 0;
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) mine += get(first + i);
    unsigned long long upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned long long other = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += other;
    }
    if (lane == 31) before[warp] = upto;
    __syncthreads();
    for (int w = 0; w < warp; ++w) upto += before[w];
    unsigned long long sum = upto - mine;
    if (sum < target && target <= upto) {
      int i = first;
      for (; sum + get(i) < target; ++i) sum += get(i);
      found = true;
      bin = static_cast<uint32_t>(i);
      elements = count[i];
      left = target - sum;
    }
    __syncthreads();
  }
};

// What one thread adds to a histogram: amounts of one bin in a row go there together.
class Adder {
 public:
  __device__ explicit Adder(Histogram& h) : histogram(h) {}
  __device__ __forceinline__ void add(uint32_t to, unsigned long long x) {
    if (to != bin) {
      flush();
      bin = to;
    }
    amount += x;
    ++elements;
  }
  __device__ __forceinline__ void flush() {
    if (elements > 0) histogram.add(bin, amount, elements);
    amount = 0;
    elements = 0;
  }

 private:
  Histogram& histogram;
  uint32_t bin = 0, elements = 0;
  unsigned long long amount = 0;
};

// Ascending with the float, equal for 0 and -0; and back.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

}  // namespace quire::cuda
