#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "gguf/metadata.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/plain_ranges.h"
#include "tokenizer/unicode.h"
#include "tokenizer/word_cache.h"

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
  if (model == "gpt2") return {};
  if (model == "llama") {
    return file_error(
        "tokenizer.ggml.model is 'llama' (SentencePiece), which Quire does not support; it reads "
        "byte-level BPE ('gpt2'), as Qwen and Llama 3 use");
  }
  return file_error("tokenizer.ggml.model is {}, which Quire does not support; it reads byte-level BPE ('gpt2')",
                    gguf::printable(model));
}

}  // namespace

Result<Tokenizer> Tokenizer::create(const TokenizerConfig& config) {
  QUIRE_CHECKED(check_model(config.model));
  if (config.pre.empty()) {
    return file_error(
        "tokenizer.ggml.pre is missing: how this model splits text into words is unknown; convert the "
        "model again with a current converter");
  }
  QUIRE_TRY(const Pretokenizer pretokenizer, find_pretokenizer(config.pre));
  QUIRE_TRY(Vocab vocab, Vocab::create(config.tokens, config.token_types));
  // Whatever the file says of their type: these texts steer the conversation and must not come out of user
  // text.
  for (const std::string_view t : kEndTexts) {
    if (const auto id = vocab.find(t)) vocab.set_type(*id, TokenType::kControl);
  }
  QUIRE_TRY(Bpe bpe, Bpe::create(vocab, config.merges));

  Tokenizer t(std::move(vocab), std::move(bpe));
  t.pretokenizer_ = pretokenizer;
  QUIRE_CHECKED(t.read_special_ids(config));
  t.find_eog_tokens();
  QUIRE_CHECKED(t.build_special_finders());
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

  // A default that the file cannot meet is dropped; a wish that it states must be possible.
  add_bos_ = config.add_bos.value_or(pretokenizer_.add_bos && bos_.has_value());
  add_eos_ = config.add_eos.value_or(false);
  if (add_bos_ && !bos_) return file_error("tokenizer.ggml.add_bos_token is set, but there is no bos_token_id");
  if (add_eos_ && !eos_) return file_error("tokenizer.ggml.add_eos_token is set, but there is no eos_token_id");

  for (const int32_t id : config.suppress_tokens) {
    if (!vocab_.contains(id)) {
      return file_error("tokenizer.ggml.suppress_tokens has the id {}, but the vocabulary has {} tokens", id,
                        vocab_.size());
    }
    suppress_.push_back(id);
  }
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

Status Tokenizer::build_special_finders() {
  std::vector<SpecialToken> trusted, user;
  std::size_t total = 0;
  for (TokenId id = 0; id < vocab_.size(); ++id) {
    const TokenType type = vocab_.type(id);
    const bool user_defined = type == TokenType::kUserDefined;
    if (!user_defined && type != TokenType::kControl && type != TokenType::kUnknown) continue;
    total += vocab_.text(id).size();
    trusted.push_back({vocab_.text(id), id});
    if (user_defined) user.push_back(trusted.back());
  }
  if (total > kMaxSpecialBytes) {
    return file_error("tokenizer.ggml.tokens: the special tokens' texts have {} bytes together; at most {} are allowed",
                      total, kMaxSpecialBytes);
  }
  trusted_specials_ = SpecialTokenFinder(std::move(trusted));
  user_specials_ = SpecialTokenFinder(std::move(user));
  return {};
}

struct Tokenizer::EncodeState {
  bool use_cache = false;
  WordCache cache;
  Bpe::Scratch scratch;
  std::u32string code_points;
  std::string word;
  std::vector<TokenId> tokens;
};

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
  for (; piece; piece = search.next()) {
    last = piece->token;
    if (last >= 0) {
      state.tokens.push_back(last);
    } else {
      encode_raw(text.substr(piece->begin, piece->end - piece->begin), state);
    }
  }
  if (options.add_special && add_eos_ && last != *eos_) state.tokens.push_back(*eos_);
  return std::move(state.tokens);
}

void Tokenizer::encode_raw(std::string_view text, EncodeState& state) const {
  std::u32string& code_points = state.code_points;
  code_points.clear();
  unicode::append_code_points(text, code_points);
  if (pretokenizer_.nfc) unicode::nfc(code_points);
  for (std::size_t i = 0; i < code_points.size();) {
    const std::size_t end = word_end(pretokenizer_.splitter, code_points, i);
    QUIRE_CHECK(end > i && end <= code_points.size(), "word [{}, {}) of {}", i, end, code_points.size());
    state.word.clear();
    for (; i < end; ++i) unicode::append_utf8(code_points[i], state.word);
    encode_word(state.word, state);
  }
}

void Tokenizer::encode_word(std::string_view word, EncodeState& state) const {
  if (state.use_cache) {
    const auto known = state.cache.find(word);
    if (!known.empty()) {
      state.tokens.insert(state.tokens.end(), known.begin(), known.end());
      return;
    }
  }
  const std::size_t before = state.tokens.size();
  std::optional<TokenId> whole;
  if (pretokenizer_.ignore_merges) whole = vocab_.find_mergeable(ByteAlphabet::get().encode(word));
  if (whole) {
    state.tokens.push_back(*whole);
  } else {
    bpe_.encode(word, state.scratch, state.tokens);
  }
  if (state.use_cache) state.cache.put(word, std::span(state.tokens).subspan(before));
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

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool render_special) const {
  std::string bytes;
  for (const TokenId id : tokens) bytes += token_bytes(id, render_special);
  return unicode::is_valid_utf8(bytes) ? bytes : unicode::replace_invalid(bytes);
}

bool Tokenizer::is_eog(TokenId id) const {
  return std::binary_search(eog_.begin(), eog_.end(), id);
}

}  // namespace quire
