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
  kNormal = 1,  // text in the byte alphabet, or with ▁ for spaces (SentencePiece); what BPE produces
  kUnknown = 2,
  kControl = 3,      // plain text: <|im_start|>; matched in trusted text only, rendered only on request
  kUserDefined = 4,  // plain text: <think>; matched everywhere, always rendered
  kUnused = 5,       // padding of the embedding table
  kByte = 6,         // the text <0xHH>
};

// Where SentencePiece's tokenizers put a space that the text does not have. Files of other programs know kNever and
// kPrepend (tokenizer.ggml.add_space_prefix); the key quire.tokenizer.space_prefix has the names below.
enum class SpacePrefix {
  kNever,            // "never"
  kPrepend,          // "prepend": before each stretch of text between special tokens
  kMetaspaceAlways,  // "metaspace_always": the same, but not before a stretch that begins with a space
  kMetaspaceFirst,   // "metaspace_first": before the whole text only, unless it begins with a space
  kAfterControl,     // "after_control": before the whole text, and behind control tokens
};
std::optional<SpacePrefix> find_space_prefix(std::string_view name);
std::string_view name_of(SpacePrefix prefix);

// Views need to live only until Tokenizer::create returns. Ids as written in the file: create checks them.
struct TokenizerConfig {
  std::string model = "gpt2";            // tokenizer.ggml.model: gpt2, llama or gemma4
  std::string pre;                       // tokenizer.ggml.pre
  std::vector<std::string_view> tokens;  // index = token id
  std::vector<int32_t> token_types;      // empty (all normal), or at least one per token
  std::vector<std::string_view> merges;  // "left right", index = rank
  std::vector<float> scores;             // llama without merges: one per token, higher ones merge first

  std::optional<SpacePrefix> space_prefix;          // llama and gemma4 only, like the rest of this paragraph
  bool remove_extra_spaces = false;                 // no spaces at the ends of a stretch, never two together
  std::vector<int32_t> strip_before, strip_behind;  // special tokens that swallow the white space there
  bool controls_strip_behind = false;               // so do all control tokens but <unk>, <s> and <|endoftext|>

  std::optional<int64_t> bos, eos, eot, eom, unknown, padding;
  std::optional<int64_t> fim_prefix, fim_suffix, fim_middle, fim_pad, fim_repo, fim_separator;
  // Further tokens that end an answer: the key quire.tokenizer.end_token_ids, which `quire convert` writes where a
  // folder names more than the keys above can.
  std::vector<int32_t> ends;
  // Of byte-level BPE: what becomes of a byte that is no token. Without it (and in other programs' files) nothing does.
  // The key quire.tokenizer.unknown_byte_token_id.
  std::optional<int64_t> unknown_byte;
  std::optional<bool> add_bos, add_eos;
  std::vector<int32_t> suppress_tokens;

  std::string_view chat_template;                                       // empty: none
  std::map<std::string, std::string_view, std::less<>> chat_templates;  // further ones, by name
};

// Reads the `tokenizer.*` keys. The views point into the file's bytes, as those of `metadata` do.
Result<TokenizerConfig> read_tokenizer_config(const gguf::Metadata& metadata);

}  // namespace quire
