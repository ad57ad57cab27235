// Philox4x32-10 of several counters at once, which differ in their third word alone (the group); the other parts of the
// first rounds are the same for all. Written once for several widths: V holds a 32-bit number in the lower half of each
// 64-bit lane, since that is where products are taken from and come out; what stands in the upper halves means nothing.
//   Included by noise_avx2.cpp and noise_avx512.cpp; everything has internal linkage.
#pragma once

#include "ops/sampling/noise.h"

namespace quire::sampling {
namespace {

constexpr uint32_t kMul0 = 0xd2511f53, kMul2 = 0xcd9e8d57, kKeyStep0 = 0x9e3779b9, kKeyStep1 = 0xbb67ae85;

// Of one stream: what rounds do not compute for every counter.
struct PhiloxStart {
  // In the first round word 0 becomes the third word's product's upper half ^ c0, word 2 is c2, word 3 is c3. In the
  // second, word 0 becomes word 1 ^ d0 and word 1 is d1.
  uint32_t c0, c2, c3, d0, d1;
  uint32_t key0[10], key1[10];

  explicit PhiloxStart(const NoiseStream& s) {
    for (uint32_t r = 0; r < 10; ++r) {
      key0[r] = static_cast<uint32_t>(s.seed) + r * kKeyStep0;
      key1[r] = static_cast<uint32_t>(s.seed >> 32) + r * kKeyStep1;
    }
    const auto p = static_cast<uint64_t>(s.position);
    const uint64_t product = (p & 0xffffffffu) * kMul0;
    c0 = static_cast<uint32_t>(p >> 32) ^ key0[0];
    c2 = static_cast<uint32_t>(product >> 32) ^ key1[0];
    c3 = static_cast<uint32_t>(product);
    const uint64_t second = uint64_t{c2} * kMul2;
    d0 = static_cast<uint32_t>(second >> 32) ^ key0[1];
    d1 = static_cast<uint32_t>(second);
  }
};

// Of kCount vectors of groups the four words each. Vectors beside each other hide the products' latency.
template <class V, int kCount>
inline void philox(const PhiloxStart& s, V (&x)[kCount][4]) {
  const V m0 = V::set1(kMul0), m2 = V::set1(kMul2);
  for (int i = 0; i < kCount; ++i) {  // x[i][2] is the group
    const V b = multiply(x[i][2], m2);
    const V w0 = high(b) ^ V::set1(s.c0);
    const V a = multiply(w0, m0);
    x[i][0] = b ^ V::set1(s.d0);
    x[i][1] = V::set1(s.d1);
    x[i][2] = xor3(high(a), V::set1(s.c3), V::set1(s.key1[1]));
    x[i][3] = a;
  }
#pragma GCC unroll 8
  for (int round = 2; round < 10; ++round) {
    const V k0 = V::set1(s.key0[round]), k1 = V::set1(s.key1[round]);
    for (int i = 0; i < kCount; ++i) {
      const V a = multiply(x[i][0], m0), b = multiply(x[i][2], m2);
      x[i][0] = xor3(high(b), x[i][1], k0);
      x[i][1] = b;
      x[i][2] = xor3(high(a), x[i][3], k1);
      x[i][3] = a;
    }
  }
}

// So many vectors at a time that the words stay in registers.
inline constexpr int kAbreast = 2;

template <class V>
void fill_words(const NoiseStream& stream, const uint32_t* groups, uint32_t* words) {
  const PhiloxStart start(stream);
  for (int at = 0; at < kNoiseGroups; at += kAbreast * V::kLanes) {
    V x[kAbreast][4];
    for (int i = 0; i < kAbreast; ++i) x[i][2] = V::load(groups + at + i * V::kLanes);
    philox(start, x);
    for (int i = 0; i < kAbreast; ++i) {
      uint32_t* const to = words + 2 * (at + i * V::kLanes);
      pack(x[i][0], x[i][1]).store(to);
      pack(x[i][2], x[i][3]).store(to + 2 * kNoiseGroups);
    }
  }
}

template <class V>
int64_t find_block(const NoiseStream& stream, const uint32_t* limit, int64_t begin, int64_t end) {
  const PhiloxStart start(stream);
  for (int64_t block = begin; block < end; ++block) {
    if (limit[block] == 0) continue;
    const auto first = static_cast<uint32_t>(block) * kNoiseGroups;
    V least = V::set1(0xffffffffu), other = least;
    least = other = pack(least, least);
    for (uint32_t at = 0; at < kNoiseGroups; at += kAbreast * V::kLanes) {
      V x[kAbreast][4];
      for (uint32_t i = 0; i < kAbreast; ++i) x[i][2] = V::count_from(first + at + i * V::kLanes);
      philox(start, x);
      for (int i = 0; i < kAbreast; ++i) {
        least = lesser(least, pack(x[i][0], x[i][1]));
        other = lesser(other, pack(x[i][2], x[i][3]));
      }
    }
    if (any_at_most(lesser(least, other), limit[block])) return block;
  }
  return end;
}

}  // namespace
}  // namespace quire::sampling
