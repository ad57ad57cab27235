// A block, a slot, a sequence and a token are all small integers; as distinct types they cannot be mixed up.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace quire {

template <class Tag>
struct Id {
  int32_t v = -1;
  constexpr Id() = default;
  constexpr explicit Id(int32_t x) : v(x) {}
  constexpr bool valid() const { return v >= 0; }
  auto operator<=>(const Id&) const = default;
};

using TokenId = int32_t;  // an index into the vocabulary; plain, because it is data, not a handle
using SeqId = Id<struct SeqTag>;
using BlockId = Id<struct BlockTag>;
using StateSlot = Id<struct StateTag>;
using RequestId = Id<struct RequestTag>;

}  // namespace quire

template <class Tag>
struct std::hash<quire::Id<Tag>> {
  size_t operator()(quire::Id<Tag> id) const noexcept { return std::hash<int32_t>{}(id.v); }
};
