// SentencePiece's BPE: spaces become ▁, then characters merge, those first whose token has the best score, or whose
// rule comes first in a list of merges.
#pragma once

#include <array>
#include <memory>

#include "core/result.h"
#include "tokenizer/char_tables.h"
#include "tokenizer/merge_rules.h"
#include "tokenizer/raw_encoder.h"
#include "tokenizer/tokenizer_config.h"

namespace quire {

class SentencePiece : public RawEncoder {
 public:
  // Merges count where there are any, else scores. Errors: scores that are not finite or not one for each token; a
  // merge that does not parse or whose parts or result are no tokens; neither a token for
  // a byte nor one for what is unknown; a token too long, or too many ways to merge.
  static Result<std::unique_ptr<SentencePiece>> create(const Vocab& vocab, const TokenizerConfig& config);

  void encode(std::string_view text, const Before& before, const Vocab& vocab, EncodeState& state) const override;
  bool adds_space(const Before& before, const Vocab& vocab) const override;
  bool nfc() const override { return false; }

 private:
  class Builder;
  using Symbol = MergeRules::Symbol;

  SentencePiece() = default;
  void normalise(std::string_view text, bool prefix, std::string& out) const;
  void encode_word(std::string_view word, const Vocab& vocab, EncodeState& state) const;
  void append_tokens(std::string_view word, EncodeState& state) const;
  void append_unknown(std::string_view character, EncodeState& state) const;

  SpacePrefix space_prefix_ = SpacePrefix::kNever;
  bool remove_extra_spaces_ = false;
  bool cut_at_newlines_ = false;  // gemma4: runs of newlines are words, and those that are tokens stay whole
  uint32_t token_count_ = 0;
  CharSymbols symbols_;
  InnerPairs inner_pairs_;
  MergeRules rules_;
  static constexpr TokenId kNoToken = -1;
  std::array<TokenId, 256> byte_tokens_{};  // kNoToken: there is none
  std::optional<TokenId> unknown_;          // set where a byte has none: what stands for the characters that have it
};

}  // namespace quire
