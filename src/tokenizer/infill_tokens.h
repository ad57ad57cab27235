// The tokens with which a model is told to fill in a text between what stands before and behind it.
#pragma once

#include <optional>

#include "gguf/metadata.h"
#include "tokenizer/tokenizer.h"

namespace quire {

struct InfillTokens {
  TokenId prefix, suffix, middle;  // before the text in front, before the one behind, before what is to be filled in
  std::optional<TokenId> repository, separator;  // before a project's name, and before each of its files' names
};

// As a file's metadata says, else as vocabularies are known to call them; nothing if one of the first three is missing.
std::optional<InfillTokens> find_infill_tokens(const Tokenizer& tokenizer, const gguf::Metadata& metadata);

}  // namespace quire
