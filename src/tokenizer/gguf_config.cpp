// The `tokenizer.*` keys of a GGUF file.
#include "gguf/metadata.h"
#include "tokenizer/tokenizer_config.h"

namespace quire {
namespace {

using gguf::Metadata;

constexpr std::string_view kPrefix = "tokenizer.ggml.";

Status read_id(const Metadata& m, std::string_view name, std::optional<int64_t>& out) {
  const std::string key = std::string(kPrefix).append(name);
  if (out || !m.has(key)) return {};
  QUIRE_TRY(out, m.get_i64(key));
  return {};
}

Status read_flag(const Metadata& m, std::string_view name, std::optional<bool>& out) {
  const std::string key = std::string(kPrefix).append(name);
  if (!m.has(key)) return {};
  QUIRE_TRY(out, m.get_bool(key));
  return {};
}

Status read_ids(const Metadata& m, TokenizerConfig& c) {
  QUIRE_CHECKED(read_id(m, "bos_token_id", c.bos));
  QUIRE_CHECKED(read_id(m, "eos_token_id", c.eos));
  QUIRE_CHECKED(read_id(m, "eot_token_id", c.eot));
  QUIRE_CHECKED(read_id(m, "eom_token_id", c.eom));
  QUIRE_CHECKED(read_id(m, "unknown_token_id", c.unknown));
  QUIRE_CHECKED(read_id(m, "padding_token_id", c.padding));
  // The first name that is present counts: the second is what older converters wrote.
  QUIRE_CHECKED(read_id(m, "fim_pre_token_id", c.fim_prefix));
  QUIRE_CHECKED(read_id(m, "prefix_token_id", c.fim_prefix));
  QUIRE_CHECKED(read_id(m, "fim_suf_token_id", c.fim_suffix));
  QUIRE_CHECKED(read_id(m, "suffix_token_id", c.fim_suffix));
  QUIRE_CHECKED(read_id(m, "fim_mid_token_id", c.fim_middle));
  QUIRE_CHECKED(read_id(m, "middle_token_id", c.fim_middle));
  QUIRE_CHECKED(read_id(m, "fim_pad_token_id", c.fim_pad));
  QUIRE_CHECKED(read_id(m, "fim_rep_token_id", c.fim_repo));
  QUIRE_CHECKED(read_id(m, "fim_sep_token_id", c.fim_separator));
  QUIRE_CHECKED(read_flag(m, "add_bos_token", c.add_bos));
  QUIRE_CHECKED(read_flag(m, "add_eos_token", c.add_eos));
  return {};
}

// tokenizer.chat_template, and tokenizer.chat_template.{name} for each name in tokenizer.chat_templates.
Status read_templates(const Metadata& m, TokenizerConfig& c) {
  QUIRE_TRY(c.chat_template, m.get_string_or("tokenizer.chat_template", ""));
  if (!m.has("tokenizer.chat_templates")) return {};
  QUIRE_TRY(const auto names, m.get_strings("tokenizer.chat_templates"));
  for (const std::string_view name : names) {
    if (name == "default") continue;  // that is tokenizer.chat_template
    QUIRE_TRY(const std::string_view source, m.get_string(fmt::format("tokenizer.chat_template.{}", name)));
    c.chat_templates.emplace(name, source);
  }
  return {};
}

}  // namespace

Result<TokenizerConfig> read_tokenizer_config(const Metadata& m) {
  TokenizerConfig c;
  QUIRE_TRY(c.model, m.get_string("tokenizer.ggml.model"));
  QUIRE_TRY(c.pre, m.get_string_or("tokenizer.ggml.pre", ""));
  if (c.model != "gpt2") return c;  // the other keys have other meanings there; Tokenizer::create says so
  QUIRE_TRY(const auto tokens, m.get_strings("tokenizer.ggml.tokens"));
  QUIRE_TRY(const auto merges, m.get_strings("tokenizer.ggml.merges"));
  c.tokens.assign(tokens.begin(), tokens.end());
  c.merges.assign(merges.begin(), merges.end());
  if (m.has("tokenizer.ggml.token_type")) {
    QUIRE_TRY(c.token_types, m.get_i32_array("tokenizer.ggml.token_type"));
  }
  if (m.has("tokenizer.ggml.suppress_tokens")) {
    QUIRE_TRY(c.suppress_tokens, m.get_i32_array("tokenizer.ggml.suppress_tokens"));
  }
  QUIRE_CHECKED(read_ids(m, c));
  QUIRE_CHECKED(read_templates(m, c));
  return c;
}

}  // namespace quire
