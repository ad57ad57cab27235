#include "convert/hf_pretokenizer.h"

#include "convert/hf_sentencepiece.h"
#include "gguf/metadata.h"
#include "tokenizer/pretokenizer.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// SmolLM's, in two steps: digits one by one, then GPT-2's of what lies between.
constexpr std::string_view kDigits = R"(\p{N})";
constexpr std::string_view kSmolLm =
    R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The splitting patterns, as tokenizer.json files write them, and the rule's name in GGUF. With the pattern a
// name stands for whether text is brought into NFC first, and for ignore_merges: find_pretokenizer knows.
struct Pattern {
  std::string_view regex, pre;
};
constexpr Pattern kPatterns[] = {
    {kLlama3, "llama-bpe"}, {kLlama3, "smaug-bpe"}, {kQwen2, "qwen2"},   {kQwen2, "stablelm2"}, {kQwen35, "qwen35"},
    {kGpt2, "gpt-2"},       {kGpt4o, "gpt-4o"},     {kTekken, "tekken"}, {kSmolLm, "smollm"},
};

// The pattern that pieces are cut by, and only one: what cuts the pieces again has no name in GGUF.
Result<std::string> find_regex(const json& tokenizer) {
  std::string regex;
  bool byte_level = false, digits = false;
  for (const json* step : steps_of(find_member(tokenizer, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = string_at(*step, "type");
    std::string found;
    if (type == "Split") {
      const json* pattern = find_member(*step, "pattern");
      if (byte_level || pattern == nullptr || flag_at(*step, "invert", false) ||
          string_at(*step, "behavior") != "Isolated")
        return file_error("pre_tokenizer: its way to split is not supported");
      found = string_at(*pattern, "Regex");
    } else if (type == "Digits") {
      if (byte_level || digits || !regex.empty() || !flag_at(*step, "individual_digits", false))
        return file_error("pre_tokenizer: its way to split digits is not supported");
      digits = true;
    } else if (type == "ByteLevel") {
      if (byte_level) return file_error("pre_tokenizer: two steps of ByteLevel are not supported");
      byte_level = true;
      if (flag_at(*step, "add_prefix_space", false))
        return file_error("pre_tokenizer: add_prefix_space is not supported");
      if (flag_at(*step, "use_regex", true)) found = kGpt2;
    } else {
      return file_error("pre_tokenizer: step {} is not supported (Split, Digits and ByteLevel are)", printable(type));
    }
    if (!found.empty() && !regex.empty())
      return file_error("pre_tokenizer: text that is split twice is not supported{}",
                        type == "ByteLevel" ? " (ByteLevel with use_regex after a Split)" : "");
    if (!found.empty()) regex = found;
  }
  if (!byte_level) return file_error("pre_tokenizer: only byte-level tokenizers are supported");
  return digits ? fmt::format("{}|{}", kDigits, regex) : regex;
}

Result<bool> is_nfc(const json& tokenizer) {
  bool nfc = false;
  for (const json* step : steps_of(find_member(tokenizer, "normalizer"), "normalizers")) {
    const std::string type = string_at(*step, "type");
    if (type != "NFC")
      return file_error("normalizer: {} is not supported (NFC is): the model would see other text than it knows",
                        printable(type));
    nfc = true;
  }
  return nfc;
}

}  // namespace

Result<std::string> find_pre(const json& tokenizer, const json& model) {
  QUIRE_TRY(const std::string regex, find_regex(tokenizer));
  QUIRE_TRY(const bool nfc, is_nfc(tokenizer));
  const bool ignore_merges = flag_at(model, "ignore_merges", false);
  bool known = false;
  for (const Pattern& p : kPatterns) {
    if (p.regex != regex) continue;
    known = true;
    QUIRE_TRY(const Pretokenizer rule, find_pretokenizer(p.pre));
    if (rule.nfc == nfc && rule.ignore_merges == ignore_merges) return std::string(p.pre);
  }
  if (known)
    return file_error("its pattern {} NFC and with ignore_merges {} is no rule that GGUF has a name for",
                      nfc ? "after" : "without", ignore_merges);
  return file_error(
      "pre_tokenizer: the pattern {} is not one of those known (of gpt-2, smollm, llama-bpe, qwen2, qwen35, gpt-4o, "
      "tekken)",
      printable(regex));
}

}  // namespace quire::convert
