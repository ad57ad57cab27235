#include "tokenizer/char_tables.h"

#include <bit>
#include <utility>

namespace quire {

size_t InnerPairs::slot(uint64_t key) const {
  const auto product = static_cast<unsigned __int128>(key ^ seed_) * (seed_ * 0x9E3779B97F4A7C15u | 1);
  return (static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product)) & (others_.size() - 1);
}

void InnerPairs::finish(uint64_t seed) {
  seed_ = seed | 1;
  std::vector<uint64_t> list = std::exchange(others_, {});
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  others_.assign(std::bit_ceil(2 * list.size() + 2), kFree);
  for (const uint64_t k : list) {
    size_t i = slot(k);
    while (others_[i] != kFree) i = (i + 1) & (others_.size() - 1);
    others_[i] = k;
  }
}

}  // namespace quire
