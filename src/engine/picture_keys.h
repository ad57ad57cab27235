// What names pictures to caches. Internal to the engine.
#pragma once

#include <string_view>
#include <vector>

#include "core/keyed_hash.h"
#include "engine/prompt_image.h"

namespace quire {

// Of each picture: of its digest and the salt, so that requests of different salts share nothing.
std::vector<Hash128> picture_keys(const KeyedHash& hash, std::string_view salt, const PromptImages& images);

// Of each 64-token chunk of a prompt with so many tokens (PrefixHashes::pictures): of the pictures that have tokens in
// it, and where they begin. Zero where there are none, empty where there are none at all.
std::vector<Hash128> pictures_of_chunks(const KeyedHash& hash, const PromptImages& images, int64_t prompt_tokens);

}  // namespace quire
