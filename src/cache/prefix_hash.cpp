#include "cache/prefix_hash.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace quire {

Hash128 chained(const KeyedHash& hash, const Hash128& before, std::span<const TokenId> chunk, const Hash128& pictures) {
  std::byte message[2 * sizeof(Hash128) + kChunkTokens * sizeof(TokenId)];
  std::memcpy(message, &before, sizeof before);
  std::memcpy(message + sizeof before, chunk.data(), chunk.size_bytes());
  std::memcpy(message + sizeof before + chunk.size_bytes(), &pictures, sizeof pictures);
  // A longer message than without any: the two have no hash in common.
  const size_t length = sizeof message - (pictures == Hash128{} ? sizeof pictures : 0);
  return hash(std::span(message, length));
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

PrefixHashes hash_prefixes(const KeyedHash& hash, const Hash128& salt, std::span<const TokenId> prompt,
                           std::vector<Hash128> pictures) {
  PrefixHashes h{.salt = salt, .pictures = std::move(pictures)};
  const size_t chunks = prompt.size() / kChunkTokens;
  if (chunks == 0) return h;
  h.at.reserve(chunks);
  Hash128 last = salt;
  for (size_t i = 0; i < chunks; ++i)
    h.at.push_back(last = chained(hash, last, prompt.subspan(i * kChunkTokens, kChunkTokens), h.pictures_in(i)));
  return h;
}

}  // namespace quire
