// The random bits of many tokens at once (gumbel.h), for each set of instructions.
#pragma once

#include <algorithm>

#include "ops/sampling/gumbel.h"

namespace quire::sampling {

inline constexpr int kNoiseGroups = 16, kNoiseWords = 4 * kNoiseGroups;

struct NoiseStream {
  uint64_t seed;
  int64_t position;
};

// Where the word of an id lies among the words of 16 groups, of which its own is number `group`: the first two of every
// group come first, as vectors leave them.
constexpr uint32_t word_index(uint32_t group, int32_t id) {
  const auto i = static_cast<uint32_t>(id);
  return (i / 2 % 2) * 2 * kNoiseGroups + 2 * group + i % 2;
}

// What a CPU computes of a stream.
struct NoiseCpu {
  // The words [kNoiseWords] of 16 groups of any numbers.
  void (*fill)(const NoiseStream& s, const uint32_t* groups, uint32_t* words);
  // Blocks of 64 ids: the first in [begin, end) with a word that is at most limit[block], or `end`. A limit of 0 skips
  // the block unseen.
  int64_t (*find)(const NoiseStream& s, const uint32_t* limit, int64_t begin, int64_t end);
};
extern const NoiseCpu kNoiseAvx2, kNoiseAvx512;

// Calls fn(i, bits) for i in [0, n) with the bits of token id_of(i); ids ascend.
template <class IdOf, class Fn>
void for_each_bits(const NoiseCpu& cpu, const NoiseStream& stream, int64_t n, IdOf id_of, Fn fn) {
  constexpr int32_t kDense = 8;  // of 64 ids: so many share groups enough for all 16 to be computed
  uint32_t groups[kNoiseGroups], words[kNoiseWords];
  for (int64_t begin = 0; begin < n;) {
    const int32_t block = id_of(begin) / kNoiseWords;
    if (begin + kDense <= n && id_of(begin + kDense - 1) / kNoiseWords == block) {
      for (uint32_t g = 0; g < kNoiseGroups; ++g) groups[g] = static_cast<uint32_t>(block) * kNoiseGroups + g;
      cpu.fill(stream, groups, words);
      for (; begin < n && id_of(begin) / kNoiseWords == block; ++begin) {
        const int32_t id = id_of(begin);
        fn(begin, words[word_index(static_cast<uint32_t>(id % kNoiseWords / 4), id)]);
      }
      continue;
    }
    const auto count = static_cast<uint32_t>(std::min<int64_t>(kNoiseGroups, n - begin));
    for (uint32_t g = 0; g < kNoiseGroups; ++g)
      groups[g] = static_cast<uint32_t>(id_of(begin + std::min(g, count - 1))) / 4;
    cpu.fill(stream, groups, words);
    for (uint32_t g = 0; g < count; ++g, ++begin) fn(begin, words[word_index(g, id_of(begin))]);
  }
}

}  // namespace quire::sampling
