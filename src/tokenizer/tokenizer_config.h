// What a tokenizer is made from: the `tokenizer.*` metadata of a GGUF file, or a test's literals.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/result.h"

namespace quire {

namespace gguf {
class Metadata;
}

// Numbered as in the file.
enum class TokenType : int32_t {
  kUndefined = 0,
  kNormal = 1,  // text in the byte alphabet; the only kind that BPE produces
  kUnknown = 2,
  kControl = 3,      // plain text: <|im_start|>; matched in trusted text only, rendered only on request
  kUserDefined = 4,  // plain text: <think>; matched everywhere, always rendered
  kUnused = 5,       // padding of the embedding table
  kByte = 6,         // the text <0xHH>
};

// Views need to live only until Tokenizer::create returns. Ids as written in the file: create checks them.
struct TokenizerConfig {
  std::string model = "gpt2";            // tokenizer.ggml.model
  std::string pre;                       // tokenizer.ggml.pre
  std::vector<std::string_view> tokens;  // index = token id
  std::vector<int32_t> token_types;      // empty (all normal), or at least one per token
  std::vector<std::string_view> merges;  // "left right", index = rank

  std::optional<int64_t> bos, eos, eot, eom, unknown, padding;
  std::optional<int64_t> fim_prefix, fim_suffix, fim_middle, fim_pad, fim_repo, fim_separator;
  std::optional<bool> add_bos, add_eos;
  std::vector<int32_t> suppress_tokens;

  std::string_view chat_template;                                       // empty: none
  std::map<std::string, std::string_view, std::less<>> chat_templates;  // further ones, by name
};

// Reads the `tokenizer.*` keys. The views point into the file's bytes, as those of `metadata` do.
Result<TokenizerConfig> read_tokenizer_config(const gguf::Metadata& metadata);

}  // namespace quire
