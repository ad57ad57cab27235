#include "cache/prefix_hash.h"

#include <algorithm>
#include <cstring>

namespace quire {

Hash128 chained(const KeyedHash& hash, const Hash128& before, std::span<const TokenId> chunk) {
  std::byte message[sizeof(Hash128) + kChunkTokens * sizeof(TokenId)];
  std::memcpy(message, &before, sizeof before);
  std::memcpy(message + sizeof before, chunk.data(), chunk.size_bytes());
  return hash(message);
}

int64_t PrefixHashes::common(const PrefixHashes& o) const {
  // Each hash depends on those before it: they are equal up to some boundary and differ from there on.
  const size_t both = std::min(at.size(), o.at.size());
  size_t low = 0, high = both;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (at[middle] == o.at[middle])
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<int64_t>(low) * kChunkTokens;
}

PrefixHashes hash_prefixes(const KeyedHash& hash, std::string_view salt, std::span<const TokenId> prompt) {
  return hash_prefixes(hash, hash(std::as_bytes(std::span(salt))), prompt);
}

PrefixHashes hash_prefixes(const KeyedHash& hash, const Hash128& salt, std::span<const TokenId> prompt) {
  PrefixHashes h{.salt = salt};
  const size_t chunks = prompt.size() / kChunkTokens;
  if (chunks == 0) return h;
  h.at.reserve(chunks);
  Hash128 last = salt;
  for (size_t i = 0; i < chunks; ++i)
    h.at.push_back(last = chained(hash, last, prompt.subspan(i * kChunkTokens, kChunkTokens)));
  return h;
}

}  // namespace quire
