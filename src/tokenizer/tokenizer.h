// Text to tokens and back, as GGUF files describe it: byte-level BPE (tokenizer.ggml.model = gpt2) and SentencePiece's
// BPE (llama, gemma4).
//
//   text -> special tokens | raw text -> NFC (Qwen) -> words -> BPE -> tokens
//   text -> special tokens | raw text -> ▁ for spaces -> BPE of characters -> tokens
//
// Immutable after creation: every member function may be called from many threads at once.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/result.h"
#include "jinja/text.h"
#include "tokenizer/raw_encoder.h"
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
  // The text goes on from another one: it gets no space in front where SentencePiece puts one.
  bool continues = false;
};

// What tokens are decoded from. Where SentencePiece puts a space before a text, a whole text loses it again.
enum class TextPart { kWhole, kContinuation };

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
  std::string decode(std::span<const TokenId> tokens, bool render_special = false,
                     TextPart part = TextPart::kWhole) const;
  // What text that is generated behind these tokens is: whole where encode would put a space before it.
  TextPart part_after(std::span<const TokenId> tokens) const;
  // How many of the bytes that a whole text begins with are spaces that it loses: one at most, or all.
  std::size_t dropped_spaces(std::string_view text) const;
  bool drops_spaces() const { return drops_space_; }
  bool drops_all_spaces() const { return drops_all_spaces_; }
  // Valid UTF-8 of the bytes of tokens.
  std::string repaired(std::string_view bytes) const;
  // The bytes one token adds to a text: often part of a character. Empty for ids outside the vocabulary.
  std::string_view token_bytes(TokenId id, bool render_special = false) const;
  // The token as the file writes it ("Ġworld", "<|im_end|>"); empty for ids outside the vocabulary.
  std::string_view token_text(TokenId id) const;
  std::optional<TokenId> find_token(std::string_view text) const { return vocab_.find(text); }

  int32_t size() const { return vocab_.size(); }
  const Vocab& vocab() const { return vocab_; }
  // Is text brought into NFC before it is encoded?
  bool nfc() const { return encoder_->nfc(); }
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
  explicit Tokenizer(Vocab vocab) : vocab_(std::move(vocab)) {}
  Status read_special_ids(const TokenizerConfig& config);
  Status read_strips(const TokenizerConfig& config);
  void find_eog_tokens();
  Status add_listed_ends(std::span<const int32_t> ids);
  Status build_special_finders(bool marks_are_spaces);
  std::string_view stripped(std::string_view text, TokenId before, TokenId behind) const;

  Vocab vocab_;
  std::unique_ptr<const RawEncoder> encoder_;
  bool sentencepiece_ = false, drops_space_ = false, drops_all_spaces_ = false;
  SpecialTokenFinder trusted_specials_, user_specials_;  // with and without control tokens
  std::optional<TokenId> bos_, eos_, eot_, eom_, padding_, fim_pad_, fim_repo_, fim_separator_;
  bool add_bos_ = false, add_eos_ = false;
  std::vector<TokenId> eog_, suppress_;
  std::vector<TokenId> strip_before_, strip_behind_;  // sorted
  std::string chat_template_;
  std::map<std::string, std::string, std::less<>> chat_templates_;
};

}  // namespace quire
