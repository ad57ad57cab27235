// What names a prefix: a hash of everything up to a 64-token boundary, of the one before it and of a salt. Where
// pictures stand in a prompt its tokens are all the same, so what these are is hashed with them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/keyed_hash.h"
#include "ops/segments.h"

namespace quire {

// The KV blocks between two boundaries.
inline constexpr int kChunkBlocks = kChunkTokens / kBlockTokens;

// The hashes of a prompt: entry i stands for the salt and tokens [0, 64 (i + 1)).
struct PrefixHashes {
  std::vector<Hash128> at;
  Hash128 salt;                   // what stands for the salt
  std::vector<Hash128> pictures;  // likewise: what stands for the pictures in each chunk; empty: there are none

  Hash128 pictures_in(size_t chunk) const { return chunk < pictures.size() ? pictures[chunk] : Hash128{}; }

  // The longest boundary up to which two prompts have the same hashes, and so in all likelihood the same tokens and
  // salt.
  int64_t common(const PrefixHashes& o) const;
};

// The hash of 64 tokens that follow those which `before` stands for; `pictures` stands for the pictures among them.
Hash128 chained(const KeyedHash& hash, const Hash128& before, std::span<const TokenId> chunk,
                const Hash128& pictures = {});

// Of all whole chunks of a prompt. `salt` stands for the salt: its hash, under a key of the caller's choice; `pictures`
// for those in each chunk, under the same key.
PrefixHashes hash_prefixes(const KeyedHash& hash, const Hash128& salt, std::span<const TokenId> prompt,
                           std::vector<Hash128> pictures = {});
// With the salt hashed under the same key.
PrefixHashes hash_prefixes(const KeyedHash& hash, std::string_view salt, std::span<const TokenId> prompt);

// The longest prefix of a prompt that may come from a cache: at least one token must run to give logits.
constexpr int64_t longest_prefix(int64_t prompt_tokens) {
  return prompt_tokens < 1 ? 0 : (prompt_tokens - 1) / kChunkTokens * kChunkTokens;
}

}  // namespace quire
