#include "core/keyed_hash.h"

#include <gtest/gtest.h>

#include <array>

namespace quire {
namespace {

// The vectors that come with the reference implementation: key 00 01 ... 0f, messages 00 01 02 ...
TEST(KeyedHash, AgreesWithThePublishedVectors) {
  const KeyedHash hash(0x0706050403020100, 0x0f0e0d0c0b0a0908);
  std::array<std::byte, 15> message{};
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i);
  EXPECT_EQ(hash({}), (Hash128{0xe6a825ba047f81a3, 0x930255c71472f66d}));
  EXPECT_EQ(hash(std::span(message).first(1)), (Hash128{0x44af996bd8c187da, 0x45fc229b11597634}));
  EXPECT_FALSE(hash(message) == hash(std::span(message).first(14)));
}

TEST(KeyedHash, DependsOnTheKey) {
  EXPECT_FALSE(KeyedHash(1, 2)({}) == KeyedHash(1, 3)({}));
  EXPECT_FALSE(KeyedHash::random()({}) == KeyedHash::random()({}));
}

}  // namespace
}  // namespace quire
