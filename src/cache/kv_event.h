// What a prefix cache tells others of what it holds: routers, which send a prompt where most of it was computed.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/prefix_hash.h"

namespace quire {

// A chunk of 64 tokens is *stored* while a prompt can be resumed behind it, or further on: no other chunk is of use to
// anybody. Parents are stored before what hangs from them, and removed after it.
struct KvEvent {
  enum class Kind : uint8_t {
    kStored,
    kRemoved,
    kCleared,  // all that was told before is void
  };
  Kind kind = Kind::kCleared;
  bool has_tokens = false;
  uint64_t hash = 0;               // stands for the chunk and all before it, under a key of this engine alone
  std::optional<uint64_t> parent;  // kStored: the chunk before; none: it begins a prompt
  std::array<TokenId, kChunkTokens> tokens{};
};

class KvEventSink {
 public:
  virtual ~KvEventSink() = default;
  // Both on the stepping thread, which they do not keep waiting. Takes events in their order; false: so many wait
  // already that these were not taken, and the prefix cache begins anew, with kCleared, when none waits.
  virtual bool put(std::vector<KvEvent> events) = 0;
  virtual bool none_waits() const = 0;
};

}  // namespace quire
