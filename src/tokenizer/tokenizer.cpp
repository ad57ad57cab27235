#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <deque>
#include <tuple>

#include "gguf/metadata.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/plain_ranges.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::size_t kMaxSpecialBytes = std::size_t{16} << 20;  // all special tokens' texts together
constexpr std::size_t kCacheFromBytes = 2048;  // shorter texts repeat too few words to fill a cache for

// Texts that end a turn or a text in the models that use them.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|flush|>",
                                          "<|calls|>",
                                          "<end_of_turn>",
                                          "</s>",
                                          "<|eom_id|>",
                                          "<|endoftext|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "<eos>",
                                          "<|end_of_text|>",
                                          "<end_of_utterance>",
                                          "<turn|>",
                                          "<|tool_response>",
                                          "[e~[",
                                          "<｜end▁of▁sentence｜>"};

// In order of preference, when the file does not say which token ends a turn.
constexpr std::string_view kEndOfTurnTexts[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",         "<|endoftext|>",     "<|end_of_text|>",
    "<EOT>",      "_<EOT>",     "[EOT]",   "<｜end▁of▁sentence｜>", "<end_of_utterance>"};

constexpr std::string_view kFimPadTexts[] = {"<|fim_pad|>"};
constexpr std::string_view kFimRepoTexts[] = {"<|repo_name|>", "<|fim_repo|>"};
constexpr std::string_view kFimSeparatorTexts[] = {"<|file_sep|>"};

std::optional<TokenId> find_first(const Vocab& vocab, std::span<const std::string_view> texts) {
  for (const std::string_view t : texts) {
    if (const auto id = vocab.find(t)) return id;
  }
  return {};
}

// An id of the metadata. Converters write "none" as -1, also in unsigned fields.
Status read_id(const Vocab& vocab, std::string_view key, std::optional<int64_t> value, std::optional<TokenId>& out) {
  if (!value || *value == -1 || *value == 0xFFFFFFFF) return {};
  if (!vocab.contains(*value)) {
    return file_error("tokenizer.ggml.{} is {}, but the vocabulary has {} tokens", key, *value, vocab.size());
  }
  out = static_cast<TokenId>(*value);
  return {};
}

Status check_model(std::string_view model) {
  if (model == "gpt2" || model == "llama" || model == "gemma4") return {};
  return file_error(
      "tokenizer.ggml.model is {}, which Quire does not support; it reads byte-level BPE ('gpt2') and SentencePiece's "
      "BPE ('llama', 'gemma4')",
      gguf::printable(model));
}

struct Encoder {
  std::unique_ptr<const RawEncoder> encoder;
  bool add_bos;  // unless the file says otherwise
};

Result<Encoder> make_byte_level(const Vocab& vocab, const TokenizerConfig& config) {
  if (config.pre.empty()) {
    return file_error(
        "tokenizer.ggml.pre is missing: how this model splits text into words is unknown; convert the "
        "model again with a current converter");
  }
  QUIRE_TRY(const Pretokenizer pretokenizer, find_pretokenizer(config.pre));
  std::optional<TokenId> unknown;
  if (config.unknown_byte) {
    if (!vocab.contains(*config.unknown_byte))
      return file_error("quire.tokenizer.unknown_byte_token_id is {}, but the vocabulary has {} tokens",
                        *config.unknown_byte, vocab.size());
    unknown = static_cast<TokenId>(*config.unknown_byte);
  }
  QUIRE_TRY(Bpe bpe, Bpe::create(vocab, config.merges, unknown));
  return Encoder{std::make_unique<ByteLevel>(pretokenizer, std::move(bpe)), pretokenizer.add_bos};
}

Result<Encoder> make_sentencepiece(const Vocab& vocab, const TokenizerConfig& config) {
  QUIRE_TRY(std::unique_ptr<SentencePiece> made, SentencePiece::create(vocab, config));
  return Encoder{std::move(made), true};
}

bool contains(std::span<const TokenId> sorted, TokenId id) {
  return std::binary_search(sorted.begin(), sorted.end(), id);
}

// What files of SentencePiece's tokenizers mean by leaving keys out, as other programs read them.
TokenizerConfig with_defaults(TokenizerConfig c) {
  const auto set = [&](std::optional<int64_t>& id, int64_t absent) {
    if (!id && absent < static_cast<int64_t>(c.tokens.size())) id = absent;
  };
  if (c.model == "llama") {
    set(c.unknown, 0);
    set(c.bos, 1);
    set(c.eos, 2);
  }
  // Early files say false, and the model is lost without it.
  if (c.model == "gemma4" && c.bos) c.add_bos = true;
  return c;
}

std::string marks(size_t count) {
  std::string text;
  for (; count > 0; --count) text += kSpaceMark;
  return text;
}

}  // namespace

Result<Tokenizer> Tokenizer::create(const TokenizerConfig& given) {
  QUIRE_CHECKED(check_model(given.model));
  const TokenizerConfig config = with_defaults(given);
  const bool sentencepiece = config.model != "gpt2";
  QUIRE_TRY(Vocab vocab, Vocab::create(config.tokens, config.token_types,
                                       sentencepiece ? Spelling::kSentencePiece : Spelling::kByteAlphabet));
  // Whatever the file says of their type: these texts steer the conversation and must not come out of user
  // text.
  for (const std::string_view t : kEndTexts) {
    if (const auto id = vocab.find(t)) vocab.set_type(*id, TokenType::kControl);
  }
  Tokenizer t(std::move(vocab));
  QUIRE_TRY(Encoder made, sentencepiece ? make_sentencepiece(t.vocab_, config) : make_byte_level(t.vocab_, config));
  t.encoder_ = std::move(made.encoder);
  t.sentencepiece_ = sentencepiece;
  t.drops_space_ = t.encoder_->adds_space({.nothing = true, .special = std::nullopt}, t.vocab_);
  t.drops_all_spaces_ = t.drops_space_ && config.remove_extra_spaces;
  QUIRE_CHECKED(t.read_special_ids(config));
  // A default that the file cannot meet is dropped; a wish that it states must be possible.
  t.add_bos_ = config.add_bos.value_or(made.add_bos && t.bos_.has_value());
  t.add_eos_ = config.add_eos.value_or(false);
  if (t.add_bos_ && !t.bos_) return file_error("tokenizer.ggml.add_bos_token is set, but there is no bos_token_id");
  if (t.add_eos_ && !t.eos_) return file_error("tokenizer.ggml.add_eos_token is set, but there is no eos_token_id");
  t.find_eog_tokens();
  QUIRE_CHECKED(t.add_listed_ends(config.ends));
  QUIRE_CHECKED(t.read_strips(config));
  QUIRE_CHECKED(t.build_special_finders(sentencepiece && config.merges.empty()));
  t.chat_template_ = config.chat_template;
  for (const auto& [name, source] : config.chat_templates) t.chat_templates_.emplace(name, source);
  return t;
}

Result<Tokenizer> Tokenizer::load(const gguf::Metadata& metadata) {
  QUIRE_TRY(const TokenizerConfig config, read_tokenizer_config(metadata));
  return create(config);
}

Status Tokenizer::read_special_ids(const TokenizerConfig& config) {
  std::optional<TokenId> unused;  // ids that are only checked
  QUIRE_CHECKED(read_id(vocab_, "bos_token_id", config.bos, bos_));
  QUIRE_CHECKED(read_id(vocab_, "eos_token_id", config.eos, eos_));
  QUIRE_CHECKED(read_id(vocab_, "eot_token_id", config.eot, eot_));
  QUIRE_CHECKED(read_id(vocab_, "eom_token_id", config.eom, eom_));
  QUIRE_CHECKED(read_id(vocab_, "unknown_token_id", config.unknown, unused));
  QUIRE_CHECKED(read_id(vocab_, "padding_token_id", config.padding, padding_));
  QUIRE_CHECKED(read_id(vocab_, "fim_pre_token_id", config.fim_prefix, unused));
  QUIRE_CHECKED(read_id(vocab_, "fim_suf_token_id", config.fim_suffix, unused));
  QUIRE_CHECKED(read_id(vocab_, "fim_mid_token_id", config.fim_middle, unused));
  QUIRE_CHECKED(read_id(vocab_, "fim_pad_token_id", config.fim_pad, fim_pad_));
  QUIRE_CHECKED(read_id(vocab_, "fim_rep_token_id", config.fim_repo, fim_repo_));
  QUIRE_CHECKED(read_id(vocab_, "fim_sep_token_id", config.fim_separator, fim_separator_));
  if (!fim_pad_) fim_pad_ = find_first(vocab_, kFimPadTexts);
  if (!fim_repo_) fim_repo_ = find_first(vocab_, kFimRepoTexts);
  if (!fim_separator_) fim_separator_ = find_first(vocab_, kFimSeparatorTexts);
  if (!eot_) eot_ = find_first(vocab_, kEndOfTurnTexts);
  if (!eom_) eom_ = vocab_.find("<|eom_id|>");

  for (const int32_t id : config.suppress_tokens) {
    if (!vocab_.contains(id)) {
      return file_error("tokenizer.ggml.suppress_tokens has the id {}, but the vocabulary has {} tokens", id,
                        vocab_.size());
    }
    suppress_.push_back(id);
  }
  return {};
}

// Which special tokens take the white space beside them with them.
Status Tokenizer::read_strips(const TokenizerConfig& config) {
  for (const auto& [name, ids, to] : {std::tuple("strip_before", &config.strip_before, &strip_before_),
                                      std::tuple("strip_behind", &config.strip_behind, &strip_behind_)}) {
    for (const int32_t id : *ids) {
      if (!vocab_.contains(id))
        return file_error("quire.tokenizer.{} has the id {}, but the vocabulary has {} tokens", name, id,
                          vocab_.size());
      to->push_back(id);
    }
  }
  if (config.controls_strip_behind) {
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      const std::string_view text = vocab_.text(id);
      if (is_control(id) && text != "<unk>" && text != "<s>" && text != "<|endoftext|>") strip_behind_.push_back(id);
    }
  }
  for (std::vector<TokenId>* const list : {&strip_before_, &strip_behind_}) std::sort(list->begin(), list->end());
  return {};
}

void Tokenizer::find_eog_tokens() {
  const auto add = [this](std::optional<TokenId> id) {
    if (id) eog_.push_back(*id);
  };
  add(eos_);
  add(eot_);
  add(eom_);
  for (const std::string_view t : kEndTexts) add(vocab_.find(t));
  add(fim_pad_);
  add(fim_repo_);
  add(fim_separator_);
  std::sort(eog_.begin(), eog_.end());
  eog_.erase(std::unique(eog_.begin(), eog_.end()), eog_.end());

  const auto has = [this](std::string_view text) { return vocab_.find(text).has_value(); };
  const auto remove = [this](std::string_view text) {
    if (const auto id = vocab_.find(text)) std::erase(eog_, *id);
  };
  // In the harmony format <|end|> closes a message, not the answer.
  if ((has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"))) remove("<|end|>");
  if (has("<|tool_response>")) remove("</s>");
}

// Those that a file lists end an answer whatever their texts are.
Status Tokenizer::add_listed_ends(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (!vocab_.contains(id))
      return file_error("quire.tokenizer.end_token_ids has the id {}, but the vocabulary has {} tokens", id,
                        vocab_.size());
    eog_.push_back(id);
  }
  std::sort(eog_.begin(), eog_.end());
  eog_.erase(std::unique(eog_.begin(), eog_.end()), eog_.end());
  return {};
}

// `marks_are_spaces`: user-defined tokens with ▁ are what spaces in the text become, not only marks in it. llama.cpp's
// converter writes them with spaces; then runs of marks are added.
Status Tokenizer::build_special_finders(bool marks_are_spaces) {
  std::vector<SpecialToken> trusted, user;
  std::deque<std::string> runs;
  std::size_t total = 0;
  const auto add = [&](std::string_view text, TokenId id, bool user_defined) {
    total += text.size();
    trusted.push_back({text, id});
    if (user_defined) user.push_back(trusted.back());
  };
  for (TokenId id = 0; id < vocab_.size(); ++id) {
    const TokenType type = vocab_.type(id);
    const bool user_defined = type == TokenType::kUserDefined;
    if (!user_defined && type != TokenType::kControl && type != TokenType::kUnknown) continue;
    if (vocab_.find(vocab_.text(id)) != id) continue;  // another token with this text
    add(vocab_.text(id), id, user_defined);
    if (!user_defined || !marks_are_spaces) continue;
    const bool spaces = vocab_.text(id).find_first_not_of(' ') == std::string_view::npos;
    std::string_view other = vocab_.bytes(id);
    if (spaces) other = runs.emplace_back(marks(vocab_.text(id).size()));
    if (other != vocab_.text(id) && !vocab_.find(other)) add(other, id, true);
  }
  if (total > kMaxSpecialBytes) {
    return file_error("tokenizer.ggml.tokens: the special tokens' texts have {} bytes together; at most {} are allowed",
                      total, kMaxSpecialBytes);
  }
  trusted_specials_ = SpecialTokenFinder(std::move(trusted));
  user_specials_ = SpecialTokenFinder(std::move(user));
  return {};
}

// Ordinary text without the white space that the special tokens around it (-1: none) take.
std::string_view Tokenizer::stripped(std::string_view text, TokenId before, TokenId behind) const {
  if (contains(strip_behind_, before)) text.remove_prefix(unicode::leading_space(text));
  if (contains(strip_before_, behind)) text.remove_suffix(unicode::trailing_space(text));
  return text;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  QUIRE_CHECK(text.size() <= kMaxTextBytes, "text of {} bytes", text.size());
  EncodeState state;
  state.use_cache = text.size() >= kCacheFromBytes;
  state.tokens.reserve(text.size() / 3 + 2);
  PlainRangeSearch search(options.parse_special ? trusted_specials_ : user_specials_, user_specials_, vocab_, text,
                          options.plain);
  std::optional<PlainRangeSearch::Piece> piece = search.next();
  if (options.add_special && add_bos_ && (!piece || piece->token != *bos_)) state.tokens.push_back(*bos_);
  TokenId last = -1;
  bool begins = !options.continues;
  while (piece) {
    const std::optional<PlainRangeSearch::Piece> next = search.next();
    if (piece->token >= 0) {
      state.tokens.push_back(piece->token);
    } else {
      const std::string_view raw =
          stripped(text.substr(piece->begin, piece->end - piece->begin), last, next ? next->token : -1);
      const Before before{.nothing = begins, .special = last < 0 ? std::nullopt : std::optional(last)};
      if (!raw.empty()) encoder_->encode(raw, before, vocab_, state);
    }
    last = piece->token;
    begins = false;
    piece = next;
  }
  if (options.add_special && add_eos_ && last != *eos_) state.tokens.push_back(*eos_);
  return std::move(state.tokens);
}

std::string_view Tokenizer::token_text(TokenId id) const {
  return vocab_.contains(id) ? vocab_.text(id) : std::string_view();
}

std::string_view Tokenizer::token_bytes(TokenId id, bool render_special) const {
  if (!vocab_.contains(id)) return {};
  const TokenType type = vocab_.type(id);
  const bool hidden = type == TokenType::kControl || type == TokenType::kUnknown;
  return hidden && !render_special ? std::string_view() : vocab_.bytes(id);
}

std::string Tokenizer::repaired(std::string_view bytes) const {
  if (unicode::is_valid_utf8(bytes)) return std::string(bytes);
  return sentencepiece_ ? unicode::replace_invalid_bytes(bytes) : unicode::replace_invalid(bytes);
}

std::size_t Tokenizer::dropped_spaces(std::string_view text) const {
  if (!drops_space_) return 0;
  const std::size_t spaces = std::min(text.find_first_not_of(' '), text.size());
  return drops_all_spaces_ ? spaces : std::min<std::size_t>(spaces, 1);
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool render_special, TextPart part) const {
  std::string bytes;
  for (const TokenId id : tokens) bytes += token_bytes(id, render_special);
  if (part == TextPart::kWhole) bytes.erase(0, dropped_spaces(bytes));
  return unicode::is_valid_utf8(bytes) ? bytes : repaired(bytes);
}

TextPart Tokenizer::part_after(std::span<const TokenId> tokens) const {
  const bool nothing = tokens.empty() || (tokens.size() == 1 && add_bos_ && tokens[0] == *bos_);
  Before before{.nothing = nothing, .special = std::nullopt};
  if (!tokens.empty() && vocab_.contains(tokens.back())) {
    const TokenType type = vocab_.type(tokens.back());
    if (type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown)
      before.special = tokens.back();
  }
  return encoder_->adds_space(before, vocab_) ? TextPart::kWhole : TextPart::kContinuation;
}

bool Tokenizer::is_eog(TokenId id) const {
  return std::binary_search(eog_.begin(), eog_.end(), id);
}

}  // namespace quire
