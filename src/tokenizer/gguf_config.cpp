// The `tokenizer.*` keys of a GGUF file.
#include <algorithm>
#include <functional>

#include "gguf/metadata.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/vocab.h"

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
  if (m.has("quire.tokenizer.end_token_ids")) {
    QUIRE_TRY(c.ends, m.get_i32_array("quire.tokenizer.end_token_ids"));
  }
  if (m.has("quire.tokenizer.unknown_byte_token_id")) {
    QUIRE_TRY(c.unknown_byte, m.get_i64("quire.tokenizer.unknown_byte_token_id"));
  }
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

// Which tokens merge first must be said, by scores or by merges: else every text becomes other tokens than the model
// knows. Merges stand in for scores in a vocabulary of SentencePiece's alone; other tokens spell spaces and bytes in
// another way, and no text is found in them.
Status read_order_of_merging(const Metadata& m, TokenizerConfig& c) {
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  if (!c.merges.empty()) {
    const auto is_piece = [](std::string_view t) { return t.starts_with(kSpaceMark) || t == "<0x0A>"; };
    if (m.has(kScores) || std::any_of(c.tokens.begin(), c.tokens.end(), is_piece)) return {};
    return file_error(
        "{} is missing, and no token begins with ▁ or stands for a byte (<0x0A>): this is no vocabulary of "
        "SentencePiece's ('{}'); convert the model again with a current converter",
        kScores, c.model);
  }
  if (!m.has(kScores))
    return file_error(
        "{} is missing, and so is tokenizer.ggml.merges: which tokens text merges to is unknown; convert the model "
        "again with a current converter",
        kScores);
  QUIRE_TRY(c.scores, m.get_f32_array(kScores));
  // Some converters write one number for all tokens where they know no scores.
  const bool equal = std::adjacent_find(c.scores.begin(), c.scores.end(), std::not_equal_to<>{}) == c.scores.end();
  if (c.scores.size() > 1 && equal)
    return file_error(
        "{} is {} for every token, and tokenizer.ggml.merges is missing: which tokens text merges to is unknown; "
        "convert the model again with a current converter",
        kScores, c.scores.front());
  return {};
}

// What only SentencePiece's tokenizers have. The keys under quire.tokenizer are our own: `quire convert` writes them
// where a folder's tokenizer does what other programs have no key for.
Status read_sentencepiece(const Metadata& m, TokenizerConfig& c) {
  QUIRE_CHECKED(read_order_of_merging(m, c));
  std::optional<bool> prefix, remove_extra;
  QUIRE_CHECKED(read_flag(m, "add_space_prefix", prefix));
  QUIRE_CHECKED(read_flag(m, "remove_extra_whitespaces", remove_extra));
  if (prefix) c.space_prefix = *prefix ? SpacePrefix::kPrepend : SpacePrefix::kNever;
  c.remove_extra_spaces = remove_extra.value_or(false);
  if (m.has("quire.tokenizer.space_prefix")) {
    QUIRE_TRY(const std::string_view name, m.get_string("quire.tokenizer.space_prefix"));
    c.space_prefix = find_space_prefix(name);
    if (!c.space_prefix)
      return file_error("quire.tokenizer.space_prefix is {}, which is unknown here", gguf::printable(name));
  }
  const bool says_strip = m.has("quire.tokenizer.strip_before") || m.has("quire.tokenizer.strip_behind");
  if (m.has("quire.tokenizer.strip_before")) {
    QUIRE_TRY(c.strip_before, m.get_i32_array("quire.tokenizer.strip_before"));
  }
  if (m.has("quire.tokenizer.strip_behind")) {
    QUIRE_TRY(c.strip_behind, m.get_i32_array("quire.tokenizer.strip_behind"));
  }
  // Phi-3's control tokens do so, and its files have no key for it: other programs go by the name too.
  QUIRE_TRY(const std::string_view architecture, m.get_string_or("general.architecture", ""));
  c.controls_strip_behind = !says_strip && architecture == "phi3";
  return {};
}

struct SpacePrefixName {
  SpacePrefix prefix;
  std::string_view name;
};
constexpr SpacePrefixName kSpacePrefixes[] = {{SpacePrefix::kNever, "never"},
                                              {SpacePrefix::kPrepend, "prepend"},
                                              {SpacePrefix::kMetaspaceAlways, "metaspace_always"},
                                              {SpacePrefix::kMetaspaceFirst, "metaspace_first"},
                                              {SpacePrefix::kAfterControl, "after_control"}};

}  // namespace

std::optional<SpacePrefix> find_space_prefix(std::string_view name) {
  for (const SpacePrefixName& p : kSpacePrefixes)
    if (p.name == name) return p.prefix;
  return std::nullopt;
}

std::string_view name_of(SpacePrefix prefix) {
  for (const SpacePrefixName& p : kSpacePrefixes)
    if (p.prefix == prefix) return p.name;
  return {};
}

Result<TokenizerConfig> read_tokenizer_config(const Metadata& m) {
  TokenizerConfig c;
  QUIRE_TRY(c.model, m.get_string("tokenizer.ggml.model"));
  QUIRE_TRY(c.pre, m.get_string_or("tokenizer.ggml.pre", ""));
  const bool sentencepiece = c.model == "llama" || c.model == "gemma4";
  // The other keys have other meanings there; Tokenizer::create says so.
  if (c.model != "gpt2" && !sentencepiece) return c;
  QUIRE_TRY(const auto tokens, m.get_strings("tokenizer.ggml.tokens"));
  c.tokens.assign(tokens.begin(), tokens.end());
  if (c.model != "llama" || m.has("tokenizer.ggml.merges")) {
    QUIRE_TRY(const auto merges, m.get_strings("tokenizer.ggml.merges"));
    c.merges.assign(merges.begin(), merges.end());
  }
  if (sentencepiece) QUIRE_CHECKED(read_sentencepiece(m, c));
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
