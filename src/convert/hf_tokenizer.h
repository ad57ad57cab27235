// tokenizer.json, tokenizer_config.json and the chat templates of a model folder, as the tokenizer.* keys of
// GGUF.
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
  std::string pre;  // the name of the splitting rule: "qwen2"
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;  // numbered as TokenType
  std::optional<int64_t> bos, eos, eot, eom, unknown, pad;
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
  std::string template_file;                          // chat_template.jinja; empty: none
  std::map<std::string, std::string> more_templates;  // additional_chat_templates/<name>.jinja
};

// Byte-level BPE only. Ids of the vocabulary without a token become unused ones. Checked by making a
// Tokenizer of it.
Result<HfTokenizer> read_hf_tokenizer(const TokenizerFiles& files, const HfConfig& config);

}  // namespace quire::convert
