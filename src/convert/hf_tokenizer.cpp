#include "convert/hf_tokenizer.h"

#include <algorithm>

#include "convert/hf_pretokenizer.h"
#include "convert/hf_sentencepiece.h"
#include "gguf/metadata.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

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
    alone_ = files_.tokenizer.empty() && !files_.model.empty();
    const std::string_view file = alone_ ? "tokenizer.model" : "tokenizer.json";
    QUIRE_CHECKED((alone_ ? read_model_alone() : read_tokenizer_json()).context(file));
    fill_holes();
    if (sentencepiece_) add_scores();
    if (!sentencepiece_) QUIRE_CHECKED(read_unknown_byte().context(file));
    read_ids();
    read_bos_eos_flags();
    QUIRE_CHECKED(read_templates());
    QUIRE_TRY(const Tokenizer made, Tokenizer::create(out_.view()).context(file));
    add_further_ends(made);
    return std::move(out_);
  }

 private:
  Status read_tokenizer_json() {
    const json* model = find_member(files_.tokenizer, "model");
    if (model == nullptr) return file_error("has no model");
    const std::string type = string_at(*model, "type");
    if (type != "BPE") return file_error("a model of type {} is not supported (BPE is)", printable(type));
    sentencepiece_ = is_sentencepiece(files_.tokenizer);
    QUIRE_CHECKED(sentencepiece_ ? read_steps(*model) : read_pre(*model));
    QUIRE_CHECKED(check_model(*model));
    QUIRE_CHECKED(check_post_processor(files_.tokenizer));
    QUIRE_CHECKED(read_vocab(*model));
    QUIRE_CHECKED(read_added_tokens());
    QUIRE_CHECKED(read_merges(*model));
    add_normalized_note();
    return {};
  }

  Status read_pre(const json& model) {
    QUIRE_TRY(out_.pre, find_pre(files_.tokenizer, model));
    unknown_ = string_at(model, "unk_token");
    fuses_unknown_ = flag_at(model, "fuse_unk", false);
    return {};
  }

  Status read_steps(const json& model) {
    out_.model = "llama";
    out_.pre = "default";
    QUIRE_TRY(out_.space_prefix, read_space_prefix(files_.tokenizer));
    unknown_ = string_at(model, "unk_token");
    if (flag_at(model, "ignore_merges", false))
      return file_error("model: ignore_merges with byte_fallback is not supported");
    return {};
  }

  // What byte-level BPE makes of a byte that is no token: nothing, unless the model names an unknown token.
  Status read_unknown_byte() {
    const auto is_token = [&](int byte) {
      return !occurs_in_utf8(byte) || find_text(std::string(ByteAlphabet::get().letter(static_cast<uint8_t>(byte))));
    };
    int byte = 0;
    while (byte < 256 && is_token(byte)) ++byte;
    if (unknown_.empty() || byte == 256) return {};
    out_.unknown_byte = find_text(unknown_);
    if (!out_.unknown_byte) return file_error("model: unk_token {} is no token", printable(unknown_));
    if (!fuses_unknown_) return {};
    return file_error("model: fuse_unk is not supported where a byte (0x{:02X}) is no token", byte);
  }

  void add_normalized_note() {
    const bool nfc = !sentencepiece_ && find_pretokenizer(out_.pre)->nfc;
    const bool prepends = sentencepiece_ && out_.space_prefix == SpacePrefix::kPrepend;
    if (normalized_ == 0 || (!nfc && !prepends)) return;
    out_.notes.push_back(fmt::format(
        "{} added tokens are looked for before {}, not after: {}", normalized_, nfc ? "NFC" : "a space is put in front",
        nfc ? "a combining mark behind one changes nothing" : "they are found wherever they stand"));
  }

  // What tokenizer.model has no part in.
  void add_scores() {
    if (!out_.scores.empty()) return;
    if (!files_.model.empty()) {
      const Result<SentencePieceModel> model = parse_sentencepiece_model(files_.model);
      if (model.ok())
        if (auto scores = scores_of_model(*model, out_.tokens, out_.types)) out_.scores = std::move(*scores);
      if (out_.scores.empty())
        out_.notes.push_back(
            fmt::format("tokenizer.model is left alone: {}",
                        model.ok() ? "it has other tokens than tokenizer.json" : model.error().message));
    }
    if (out_.scores.empty()) out_.scores = scores_of_merges(out_.tokens, out_.merges);
  }

  Status read_model_alone() {
    sentencepiece_ = true;
    QUIRE_TRY(const SentencePieceModel model, parse_sentencepiece_model(files_.model));
    out_.model = "llama";
    out_.pre = "default";
    make_room();
    bool user_defined = false;
    for (size_t i = 0; i < model.pieces.size(); ++i) {
      QUIRE_CHECKED(checked_id(i, model.pieces[i].text));
      set(i, model.pieces[i].text, static_cast<TokenType>(model.pieces[i].type));
      user_defined = user_defined || model.pieces[i].type == SentencePieceModel::kUserDefined;
    }
    if (model.add_dummy_prefix) out_.space_prefix = user_defined ? SpacePrefix::kAfterControl : SpacePrefix::kPrepend;
    out_.remove_extra_spaces = model.remove_extra_whitespaces;
    model_bos_ = model.bos;
    model_eos_ = model.eos;
    for (const auto& [text, id] : files_.added_tokens.items()) QUIRE_CHECKED(add_token(id, json{{"content", text}}));
    QUIRE_CHECKED(read_added_tokens());
    QUIRE_CHECKED(check_same_pieces(model));
    out_.scores = *scores_of_model(model, out_.tokens, out_.types);
    return {};
  }

  // Tokens that were added may stand in place of pieces, but not as what text merges to.
  Status check_same_pieces(const SentencePieceModel& model) {
    if (scores_of_model(model, out_.tokens, out_.types)) return {};
    return file_error("has other tokens than tokenizer_config.json");
  }

  Result<size_t> checked_id(const json& id, std::string_view text) const {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(config_.vocab))
      return file_error("token {} has the id {}, but the vocabulary of config.json has {}", printable(text), id.dump(),
                        config_.vocab);
    return id.get<size_t>();
  }

  Status read_vocab(const json& model) {
    const json* vocab = find_member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object() || vocab->empty()) return file_error("has no vocabulary");
    make_room();
    for (const auto& [text, id] : vocab->items()) {
      QUIRE_TRY(const size_t i, checked_id(id, text));
      if (out_.types[i] != static_cast<int32_t>(TokenType::kUndefined))
        return file_error("id {} stands for both {} and {}", i, printable(out_.tokens[i]), printable(text));
      set(i, text, type_of(text));
    }
    return {};
  }

  void make_room() {
    const size_t size = static_cast<size_t>(config_.vocab);
    out_.tokens.resize(size);
    out_.types.assign(size, static_cast<int32_t>(TokenType::kUndefined));
  }

  TokenType type_of(std::string_view text) const {
    if (!sentencepiece_) return TokenType::kNormal;
    if (text == unknown_) return TokenType::kUnknown;
    const bool byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
                      text.substr(3, 2).find_first_not_of("0123456789ABCDEF") == text.npos;
    return byte ? TokenType::kByte : TokenType::kNormal;
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
    const auto type = static_cast<TokenType>(out_.types[i]);
    const bool replaces = alone_ && type != TokenType::kNormal && type != TokenType::kByte;
    if (type != TokenType::kUndefined && out_.tokens[i] != text && !replaces)
      return file_error("id {} stands for both {} and {}", i, printable(out_.tokens[i]), printable(text));
    QUIRE_CHECKED(read_strips(token, text, static_cast<int32_t>(i)));
    const bool unknown = type == TokenType::kUnknown;
    const bool control = flag_at(token, "special", false) || looks_special(text);
    if (flag_at(token, "normalized", false) && !control) ++normalized_;
    set(i, text, unknown ? TokenType::kUnknown : control ? TokenType::kControl : TokenType::kUserDefined);
    return {};
  }

  // The tokens of byte-level BPE are found wherever their text stands, and take nothing beside it.
  Status read_strips(const json& token, std::string_view text, int32_t id) {
    for (const std::string_view key : {"lstrip", "rstrip", "single_word"}) {
      if (!flag_at(token, key, false)) continue;
      if (!sentencepiece_ || key == "single_word")
        return file_error("added token {}: {} is not supported", printable(text), key);
      (key == "lstrip" ? out_.strip_before : out_.strip_behind).push_back(id);
    }
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
      if (!known || alone_) QUIRE_CHECKED(add_token(id, token));
    }
    return {};
  }

  // "a b", or ["a", "b"] in newer files; GGUF has the first form, so spaces inside a part are written as the
  // alphabet of bytes writes them. SentencePiece's have none.
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
      if (sentencepiece_ &&
          (m[0].get_ref<const std::string&>() + m[1].get_ref<const std::string&>()).find(' ') != std::string::npos)
        return file_error("merge {} has a space: not supported here", out_.merges.size());
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
    const auto in_model = [](int64_t id) { return id < 0 ? std::nullopt : std::optional(id); };
    out_.bos = choose("bos", config_.bos ? config_.bos : in_model(model_bos_));
    out_.eos = choose("eos", config_.eos ? config_.eos : in_model(model_eos_));
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
    // A tokenizer.model says nothing of it; models of that kind are used with a BOS.
    const bool absent = begins || files_.tokenizer.empty();
    out_.add_bos = flag_at(files_.tokenizer_config, "add_bos_token", absent) && out_.bos;
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

  // All ids that generation_config.json and config.json end an answer with. What readers do not find by name anyway
  // takes the keys that other programs know, as far as there are some, then our own list.
  void add_further_ends(const Tokenizer& made) {
    std::vector<int64_t> ids;
    add_ids(find_member(files_.generation_config, "eos_token_id"), ids);
    ids.insert(ids.end(), config_.ends.begin(), config_.ends.end());
    std::vector<int64_t> seen;
    for (const int64_t id : ids) {
      if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
      seen.push_back(id);
      if (id >= config_.vocab) {
        out_.notes.push_back(fmt::format("eos_token_id {} is outside the vocabulary: left out", id));
        continue;
      }
      if (made.is_eog(static_cast<TokenId>(id))) continue;
      if (!out_.eot)
        out_.eot = id;
      else if (!out_.eom)
        out_.eom = id;
      else
        out_.ends.push_back(static_cast<int32_t>(id));
    }
  }

  const TokenizerFiles& files_;
  const HfConfig& config_;
  HfTokenizer out_;
  bool sentencepiece_ = false, alone_ = false;  // alone_: tokenizer.model without tokenizer.json
  std::string unknown_;                         // the text of the model's unknown token
  bool fuses_unknown_ = false;                  // a run of them is one token (byte-level BPE)
  int64_t model_bos_ = -1, model_eos_ = -1;     // of a tokenizer.model alone
  int normalized_ = 0;                          // added tokens that transformers looks for in the text after NFC
};

}  // namespace

TokenizerConfig HfTokenizer::view() const {
  TokenizerConfig c;
  c.model = model;
  c.pre = pre;
  c.scores = scores;
  c.space_prefix = space_prefix;
  c.remove_extra_spaces = remove_extra_spaces;
  c.strip_before = strip_before;
  c.strip_behind = strip_behind;
  c.tokens.assign(tokens.begin(), tokens.end());
  c.merges.assign(merges.begin(), merges.end());
  c.token_types = types;
  c.bos = bos;
  c.eos = eos;
  c.eot = eot;
  c.eom = eom;
  c.ends = ends;
  c.unknown_byte = unknown_byte;
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
