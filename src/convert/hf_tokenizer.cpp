#include "convert/hf_tokenizer.h"

#include <algorithm>

#include "gguf/metadata.h"
#include "tokenizer/tokenizer.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
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
    {kLlama3, "llama-bpe"}, {kLlama3, "smaug-bpe"}, {kQwen2, "qwen2"},  {kQwen2, "stablelm2"},
    {kQwen35, "qwen35"},    {kGpt2, "gpt-2"},       {kGpt4o, "gpt-4o"}, {kTekken, "tekken"},
};

std::string string_at(const json& object, std::string_view key) {
  const json* v = find_member(object, key);
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}
bool flag_at(const json& object, std::string_view key, bool absent) {
  const json* v = find_member(object, key);
  return v != nullptr && v->is_boolean() ? v->get<bool>() : absent;
}

// Types of the steps of a normalizer or pre-tokenizer, which may be a sequence.
std::vector<const json*> steps_of(const json* step, std::string_view list) {
  std::vector<const json*> steps;
  if (step == nullptr) return steps;
  const json* inner = find_member(*step, list);
  if (string_at(*step, "type") != "Sequence" || inner == nullptr || !inner->is_array()) return {step};
  for (const json& s : *inner) steps.push_back(&s);
  return steps;
}

// The pattern that pieces are cut by, and only one: what cuts the pieces again has no name in GGUF.
Result<std::string> find_regex(const json& tokenizer) {
  std::string regex;
  bool byte_level = false;
  for (const json* step : steps_of(find_member(tokenizer, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = string_at(*step, "type");
    std::string found;
    if (type == "Split") {
      const json* pattern = find_member(*step, "pattern");
      if (byte_level || pattern == nullptr || flag_at(*step, "invert", false) ||
          string_at(*step, "behavior") != "Isolated")
        return file_error("pre_tokenizer: its way to split is not supported");
      found = string_at(*pattern, "Regex");
    } else if (type == "ByteLevel") {
      if (byte_level) return file_error("pre_tokenizer: two steps of ByteLevel are not supported");
      byte_level = true;
      if (flag_at(*step, "add_prefix_space", false))
        return file_error("pre_tokenizer: add_prefix_space is not supported");
      if (flag_at(*step, "use_regex", true)) found = kGpt2;
    } else {
      return file_error("pre_tokenizer: step {} is not supported (Split and ByteLevel are)", printable(type));
    }
    if (!found.empty() && !regex.empty())
      return file_error("pre_tokenizer: text that is split twice is not supported{}",
                        type == "ByteLevel" ? " (ByteLevel with use_regex after a Split)" : "");
    if (!found.empty()) regex = found;
  }
  if (!byte_level) return file_error("pre_tokenizer: only byte-level tokenizers are supported");
  return regex;
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

// The name in GGUF of all that: the pattern, NFC, and ignore_merges of the model.
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
      "pre_tokenizer: the pattern {} is not one of those known (of gpt-2, llama-bpe, qwen2, qwen35, gpt-4o, tekken)",
      printable(regex));
}

// What would make other tokens of a text, or other tokens each time.
Status check_model(const json& model) {
  for (const std::string_view key : {"end_of_word_suffix", "continuing_subword_prefix"})
    if (!string_at(model, key).empty())
      return file_error("model: {} {} is not supported", key, printable(string_at(model, key)));
  const json* dropout = find_member(model, "dropout");
  if (dropout != nullptr && *dropout != json(0))
    return file_error("model: dropout {} is not supported: a text would have other tokens each time",
                      printable(dropout->dump()));
  return {};
}

// Tokens are found wherever their text stands, and take nothing beside it.
Status check_added_token(const json& token, std::string_view text) {
  for (const std::string_view key : {"lstrip", "rstrip", "single_word"})
    if (flag_at(token, key, false)) return file_error("added token {}: {} is not supported", printable(text), key);
  return {};
}

Status check_post_processor(const json& tokenizer) {
  for (const json* step : steps_of(find_member(tokenizer, "post_processor"), "processors")) {
    const std::string type = string_at(*step, "type");
    if (type != "TemplateProcessing" && type != "ByteLevel")
      return file_error("post_processor: {} is not supported (TemplateProcessing and ByteLevel are)", printable(type));
  }
  return {};
}

class Reader {
 public:
  Reader(const TokenizerFiles& files, const HfConfig& config) : files_(files), config_(config) {}

  Result<HfTokenizer> run() {
    const json* model = find_member(files_.tokenizer, "model");
    if (model == nullptr) return file_error("tokenizer.json: has no model");
    const std::string type = string_at(*model, "type");
    if (type != "BPE")
      return file_error("tokenizer.json: a model of type {} is not supported (byte-level BPE is)", printable(type));
    if (flag_at(*model, "byte_fallback", false))
      return file_error("tokenizer.json: BPE with byte_fallback (SentencePiece) is not supported (byte-level BPE is)");
    QUIRE_TRY(out_.pre, find_pre(files_.tokenizer, *model).context("tokenizer.json"));
    QUIRE_CHECKED(check_model(*model).context("tokenizer.json"));
    QUIRE_CHECKED(check_post_processor(files_.tokenizer).context("tokenizer.json"));
    QUIRE_CHECKED(read_vocab(*model).context("tokenizer.json"));
    QUIRE_CHECKED(read_added_tokens().context("tokenizer.json"));
    QUIRE_CHECKED(read_merges(*model).context("tokenizer.json"));
    if (normalized_ > 0 && find_pretokenizer(out_.pre)->nfc)
      out_.notes.push_back(fmt::format(
          "{} added tokens are looked for before NFC, not after: a combining mark behind one changes nothing",
          normalized_));
    fill_holes();
    read_ids();
    read_bos_eos_flags();
    QUIRE_CHECKED(read_templates());
    QUIRE_TRY(const Tokenizer made, Tokenizer::create(out_.view()).context("tokenizer.json"));
    add_further_ends(made);
    return std::move(out_);
  }

 private:
  Result<size_t> checked_id(const json& id, std::string_view text) const {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(config_.vocab))
      return file_error("token {} has the id {}, but the vocabulary of config.json has {}", printable(text), id.dump(),
                        config_.vocab);
    return id.get<size_t>();
  }

  Status read_vocab(const json& model) {
    const json* vocab = find_member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object() || vocab->empty()) return file_error("has no vocabulary");
    const size_t size = static_cast<size_t>(config_.vocab);
    out_.tokens.resize(size);
    out_.types.assign(size, static_cast<int32_t>(TokenType::kUndefined));
    for (const auto& [text, id] : vocab->items()) {
      QUIRE_TRY(const size_t i, checked_id(id, text));
      if (out_.types[i] != static_cast<int32_t>(TokenType::kUndefined))
        return file_error("id {} stands for both {} and {}", i, printable(out_.tokens[i]), printable(text));
      set(i, text, TokenType::kNormal);
    }
    return {};
  }

  void set(size_t i, std::string_view text, TokenType type) {
    out_.tokens[i] = text;
    out_.types[i] = static_cast<int32_t>(type);
  }

  // Text that is a control token whatever its flag says.
  static bool looks_special(std::string_view t) {
    return (t.starts_with("<|") && t.ends_with("|>")) || (t.starts_with("<｜") && t.ends_with("｜>")) || t == "<pad>" ||
           t == "<mask>" || (t.starts_with("<unused") && t.ends_with(">"));
  }

  Status add_token(const json& id, const json& token) {
    const std::string text = string_at(token, "content");
    if (text.empty()) return file_error("an added token has no text");
    QUIRE_TRY(const size_t i, checked_id(id, text));
    if (out_.types[i] != static_cast<int32_t>(TokenType::kUndefined) && out_.tokens[i] != text)
      return file_error("id {} stands for both {} and {}", i, printable(out_.tokens[i]), printable(text));
    QUIRE_CHECKED(check_added_token(token, text));
    const bool control = flag_at(token, "special", false) || looks_special(text);
    if (flag_at(token, "normalized", false) && !control) ++normalized_;
    set(i, text, control ? TokenType::kControl : TokenType::kUserDefined);
    return {};
  }

  Status read_added_tokens() {
    if (const json* added = find_member(files_.tokenizer, "added_tokens")) {
      if (!added->is_array()) return file_error("added_tokens is no list");
      for (const json& token : *added) {
        const json* id = find_member(token, "id");
        if (id == nullptr) return file_error("an added token has no id");
        QUIRE_CHECKED(add_token(*id, token));
      }
    }
    // Some models list a few more here.
    const json* decoder = find_member(files_.tokenizer_config, "added_tokens_decoder");
    if (decoder == nullptr || !decoder->is_object()) return {};
    for (const auto& [key, token] : decoder->items()) {
      if (key.empty() || key.size() > 10 || key.find_first_not_of("0123456789") != key.npos) continue;
      const json id = std::stoull(key);
      const bool known = id.get<uint64_t>() < out_.types.size() &&
                         out_.types[id.get<size_t>()] != static_cast<int32_t>(TokenType::kUndefined);
      if (!known) QUIRE_CHECKED(add_token(id, token));
    }
    return {};
  }

  // "a b", or ["a", "b"] in newer files; GGUF has the first form, so spaces inside a part are written as the
  // alphabet of bytes writes them.
  Status read_merges(const json& model) {
    const json* merges = find_member(model, "merges");
    if (merges == nullptr || !merges->is_array()) return file_error("has no merges");
    for (const json& m : *merges) {
      if (m.is_string()) {
        out_.merges.push_back(m.get<std::string>());
        continue;
      }
      if (!m.is_array() || m.size() != 2 || !m[0].is_string() || !m[1].is_string())
        return file_error("merge {} is not a pair of texts", out_.merges.size());
      const auto part = [](const json& text) {
        std::string mapped;
        for (const char c : text.get_ref<const std::string&>()) c == ' ' ? mapped += "Ġ" : mapped += c;
        return mapped;
      };
      out_.merges.push_back(part(m[0]) + " " + part(m[1]));
    }
    return {};
  }

  void fill_holes() {
    for (size_t i = 0; i < out_.types.size(); ++i)
      if (out_.types[i] == static_cast<int32_t>(TokenType::kUndefined))
        set(i, fmt::format("[PAD{}]", i), TokenType::kUnused);
  }

  std::optional<int64_t> find_text(const std::string& text) const {
    const auto at = std::find(out_.tokens.begin(), out_.tokens.end(), text);
    if (text.empty() || at == out_.tokens.end()) return std::nullopt;
    return at - out_.tokens.begin();
  }
  // A text, or an object with the text.
  std::string named_token(std::string_view key) const {
    const json* v = find_member(files_.tokenizer_config, key);
    if (v == nullptr) return {};
    return v->is_string() ? v->get<std::string>() : string_at(*v, "content");
  }

  // The tokenizer's own word counts, then config.json, then generation_config.json.
  void read_ids() {
    const auto choose = [&](std::string_view name, std::optional<int64_t> from_config) {
      std::optional<int64_t> id = find_text(named_token(fmt::format("{}_token", name)));
      if (!id) id = from_config;
      if (!id) id = first_id(find_member(files_.generation_config, fmt::format("{}_token_id", name)));
      if (id && *id >= config_.vocab) {
        out_.notes.push_back(fmt::format("{}_token_id {} is outside the vocabulary: left out", name, *id));
        id.reset();
      }
      return id;
    };
    out_.bos = choose("bos", config_.bos);
    out_.eos = choose("eos", config_.eos);
    out_.pad = choose("pad", config_.pad);
    out_.unknown = choose("unk", std::nullopt);
  }

  // The post-processor's template for one text: does a special token stand at its begin, and one at its end?
  std::pair<bool, bool> template_ends() const {
    for (const json* step : steps_of(find_member(files_.tokenizer, "post_processor"), "processors")) {
      if (string_at(*step, "type") != "TemplateProcessing") continue;
      const json* single = find_member(*step, "single");
      if (single == nullptr || !single->is_array() || single->size() < 2) continue;
      return {find_member(single->front(), "SpecialToken") != nullptr,
              find_member(single->back(), "SpecialToken") != nullptr};
    }
    return {false, false};
  }

  void read_bos_eos_flags() {
    const auto [begins, ends] = template_ends();
    out_.add_bos = flag_at(files_.tokenizer_config, "add_bos_token", begins) && out_.bos;
    if (ends || find_member(files_.tokenizer_config, "add_eos_token") != nullptr)
      out_.add_eos = flag_at(files_.tokenizer_config, "add_eos_token", ends) && out_.eos;
  }

  Status read_templates() {
    const json* v = find_member(files_.tokenizer_config, "chat_template");
    if (v != nullptr && v->is_string()) {
      out_.chat_template = v->get<std::string>();
    } else if (v != nullptr && v->is_array()) {
      for (const json& named : *v) {
        const std::string name = string_at(named, "name"), source = string_at(named, "template");
        if (name == "default")
          out_.chat_template = source;
        else
          out_.chat_templates[name] = source;
      }
    } else if (v != nullptr) {
      return file_error("tokenizer_config.json: chat_template is neither a text nor a list");
    }
    if (!files_.template_file.empty()) out_.chat_template = files_.template_file;
    for (const auto& [name, source] : files_.more_templates) out_.chat_templates[name] = source;
    std::erase_if(out_.chat_templates, [&](const auto& named) {
      const bool bad = named.first.empty() || named.first.size() > 64 ||
                       named.first.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != std::string::npos;
      if (bad)
        out_.notes.push_back(fmt::format("chat template {} is left out: no name for a key", printable(named.first)));
      return bad;
    });
    return {};
  }

  // generation_config.json may list more ids that end an answer than readers find by name.
  void add_further_ends(const Tokenizer& made) {
    const json* ids = find_member(files_.generation_config, "eos_token_id");
    if (ids == nullptr || !ids->is_array()) return;
    for (const json& id : *ids) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(config_.vocab)) continue;
      if (made.is_eog(id.get<TokenId>())) continue;
      if (!out_.eot)
        out_.eot = id.get<int64_t>();
      else if (!out_.eom)
        out_.eom = id.get<int64_t>();
      else
        out_.notes.push_back(fmt::format("eos_token_id {} is left out: there is no key for a fourth", id.dump()));
    }
  }

  const TokenizerFiles& files_;
  const HfConfig& config_;
  HfTokenizer out_;
  int normalized_ = 0;  // added tokens that transformers looks for in the text after NFC
};

}  // namespace

TokenizerConfig HfTokenizer::view() const {
  TokenizerConfig c;
  c.pre = pre;
  c.tokens.assign(tokens.begin(), tokens.end());
  c.merges.assign(merges.begin(), merges.end());
  c.token_types = types;
  c.bos = bos;
  c.eos = eos;
  c.eot = eot;
  c.eom = eom;
  c.unknown = unknown;
  c.padding = pad;
  c.add_bos = add_bos;
  c.add_eos = add_eos;
  c.chat_template = chat_template;
  for (const auto& [name, source] : chat_templates) c.chat_templates.emplace(name, source);
  return c;
}

Result<HfTokenizer> read_hf_tokenizer(const TokenizerFiles& files, const HfConfig& config) {
  return Reader(files, config).run();
}

}  // namespace quire::convert
