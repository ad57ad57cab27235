// tokenizer.json or tokenizer.model, tokenizer_config.json and the chat templates of a model folder, as the tokenizer.*
// keys of GGUF.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/hf_config.h"
#include "convert/json.h"
#include "tokenizer/tokenizer_config.h"

namespace quire::convert {

struct HfTokenizer {
  std::string model = "gpt2";  // byte-level BPE, or "llama": SentencePiece's
  std::string pre;             // the name of the splitting rule: "qwen2"
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;  // numbered as TokenType
  // Of "llama" only:
  std::vector<float> scores;
  SpacePrefix space_prefix = SpacePrefix::kNever;
  bool remove_extra_spaces = false;
  std::vector<int32_t> strip_before, strip_behind;

  std::optional<int64_t> bos, eos, eot, eom, unknown, pad;
  std::vector<int32_t> ends;            // further tokens that end an answer
  std::optional<int64_t> unknown_byte;  // as in TokenizerConfig
  bool add_bos = false;
  std::optional<bool> add_eos;
  std::string chat_template;
  std::map<std::string, std::string> chat_templates;  // further ones, by name
  std::vector<std::string> notes;

  TokenizerConfig view() const;  // into this object
};

// The files' documents; absent files are empty objects.
struct TokenizerFiles {
  nlohmann::json tokenizer, tokenizer_config, generation_config;
  nlohmann::json added_tokens;                        // added_tokens.json: texts and their ids
  std::string model;                                  // tokenizer.model; empty: none
  std::string template_file;                          // chat_template.jinja; empty: none
  std::map<std::string, std::string> more_templates;  // additional_chat_templates/<name>.jinja
};

// Byte-level BPE and SentencePiece's BPE; tokenizer.model alone where there is no tokenizer.json. Ids of the vocabulary
// without a token become unused ones. Checked by making a Tokenizer of it.
Result<HfTokenizer> read_hf_tokenizer(const TokenizerFiles& files, const HfConfig& config);

}  // namespace quire::convert
