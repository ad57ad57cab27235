#include "core/keyed_hash.h"

#include <bit>
#include <cstring>
#include <random>

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little);

struct State {
  uint64_t v0, v1, v2, v3;

  void rounds(int n) {
    while (n-- > 0) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
  uint64_t folded() const { return v0 ^ v1 ^ v2 ^ v3; }
};

}  // namespace

KeyedHash KeyedHash::random() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  const uint64_t first = word();
  return {first, word()};
}

Hash128 KeyedHash::operator()(std::span<const std::byte> message) const {
  // "somepseudorandomlygeneratedbytes"; 0xee and 0xdd tell the long output from the short one.
  State s{0x736f6d6570736575 ^ key0_, 0x646f72616e646f6d ^ key1_ ^ 0xee, 0x6c7967656e657261 ^ key0_,
          0x7465646279746573 ^ key1_};
  const uint64_t length = message.size();
  for (; message.size() >= 8; message = message.subspan(8)) {
    uint64_t word = 0;
    std::memcpy(&word, message.data(), 8);
    s.absorb(word);
  }
  uint64_t last = length << 56;
  for (size_t i = 0; i < message.size(); ++i) last |= static_cast<uint64_t>(message[i]) << (8 * i);
  s.absorb(last);
  s.v2 ^= 0xee;
  s.rounds(4);
  Hash128 h{.low = s.folded()};
  s.v1 ^= 0xdd;
  s.rounds(4);
  h.high = s.folded();
  return h;
}

}  // namespace quire
