// Byte-level BPE: text -> NFC (Qwen) -> words -> BPE -> tokens.
#pragma once

#include <memory>
#include <utility>

#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/raw_encoder.h"

namespace quire {

class ByteLevel : public RawEncoder {
 public:
  ByteLevel(const Pretokenizer& pretokenizer, Bpe bpe) : pretokenizer_(pretokenizer), bpe_(std::move(bpe)) {}

  void encode(std::string_view text, const Before& before, const Vocab& vocab, EncodeState& state) const override;
  bool adds_space(const Before&, const Vocab&) const override { return false; }
  bool nfc() const override { return pretokenizer_.nfc; }

 private:
  void encode_word(std::string_view word, const Vocab& vocab, EncodeState& state) const;

  Pretokenizer pretokenizer_;
  Bpe bpe_;
};

}  // namespace quire
