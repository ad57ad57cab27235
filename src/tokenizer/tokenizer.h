// Text to tokens and back: byte-level BPE as GGUF files describe it (tokenizer.ggml.model = "gpt2").
//
//   text -> special tokens | raw text -> NFC (Qwen) -> words -> BPE -> tokens
//
// Immutable after creation: every member function may be called from many threads at once.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/result.h"
#include "jinja/text.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/vocab.h"

namespace quire {

struct EncodeOptions {
  // Put BOS in front and EOS behind where the model wants them (add_bos, add_eos). A BOS or EOS that the text
  // already begins or ends with is not doubled.
  bool add_special = true;
  // Recognise control tokens written in the text. For chat templates and prompts of the operator, never for
  // text that comes from a user: with false, only user-defined tokens such as <think> are recognised.
  bool parse_special = true;
  // With parse_special: bytes in which it is false nevertheless, such as what users said in a conversation
  // (RenderedPrompt::foreign). Ranges in order, apart from each other. A control token that is there in part is none,
  // and a text without such tokens has the same tokens with and without the ranges.
  std::span<const jinja::ByteRange> plain{};
};

class Tokenizer {
 public:
  // Every inconsistency of the file is a Fault::kModelFile error: see docs/tokenizer.md.
  static Result<Tokenizer> create(const TokenizerConfig& config);
  // read_tokenizer_config and create.
  static Result<Tokenizer> load(const gguf::Metadata& metadata);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;

  static constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

  // Tokens of any bytes of at most kMaxTextBytes; a byte that belongs to no UTF-8 character counts as U+FFFD.
  // Time grows as n log n at worst, whatever the text.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;

  // The text of tokens, always valid UTF-8: what is no character becomes U+FFFD. `render_special` shows
  // control tokens as their text. Ids outside the vocabulary stand for nothing.
  std::string decode(std::span<const TokenId> tokens, bool render_special = false) const;
  // The bytes one token adds to a text: often part of a character. Empty for ids outside the vocabulary.
  std::string_view token_bytes(TokenId id, bool render_special = false) const;
  // The token as the file writes it ("Ġworld", "<|im_end|>"); empty for ids outside the vocabulary.
  std::string_view token_text(TokenId id) const;
  std::optional<TokenId> find_token(std::string_view text) const { return vocab_.find(text); }

  int32_t size() const { return vocab_.size(); }
  const Vocab& vocab() const { return vocab_; }
  const Pretokenizer& pretokenizer() const { return pretokenizer_; }
  bool is_control(TokenId id) const { return vocab_.contains(id) && vocab_.type(id) == TokenType::kControl; }

  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  std::optional<TokenId> eot() const { return eot_; }
  std::optional<TokenId> eom() const { return eom_; }
  std::optional<TokenId> padding() const { return padding_; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }

  // Tokens that end a generation, in increasing order.
  std::span<const TokenId> eog_tokens() const { return eog_; }
  bool is_eog(TokenId id) const;
  // Tokens that must never be sampled.
  std::span<const TokenId> suppress_tokens() const { return suppress_; }

  // Jinja sources; empty when the file has none. Further templates by name ("tool_use").
  std::string_view chat_template() const { return chat_template_; }
  const std::map<std::string, std::string, std::less<>>& chat_templates() const { return chat_templates_; }

 private:
  struct EncodeState;

  Tokenizer(Vocab vocab, Bpe bpe) : vocab_(std::move(vocab)), bpe_(std::move(bpe)) {}
  Status read_special_ids(const TokenizerConfig& config);
  void find_eog_tokens();
  Status build_special_finders();
  void encode_raw(std::string_view text, EncodeState& state) const;
  void encode_word(std::string_view word, EncodeState& state) const;

  Vocab vocab_;
  Bpe bpe_;
  Pretokenizer pretokenizer_{};
  SpecialTokenFinder trusted_specials_, user_specials_;  // with and without control tokens
  std::optional<TokenId> bos_, eos_, eot_, eom_, padding_, fim_pad_, fim_repo_, fim_separator_;
  bool add_bos_ = false, add_eos_ = false;
  std::vector<TokenId> eog_, suppress_;
  std::string chat_template_;
  std::map<std::string, std::string, std::less<>> chat_templates_;
};

}  // namespace quire
