// tokenizer.model, the file of SentencePiece: a protobuf message (sentencepiece_model.proto), of which this reads what
// BPE needs. It comes from strangers: every length is checked against what is left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace quire::convert {

struct SentencePieceModel {
  // Numbered as in the file, and in GGUF.
  enum Type : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    int32_t type = kNormal;
  };
  std::vector<Piece> pieces;  // index = id
  int64_t unknown = 0, bos = 1, eos = 2, pad = -1;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true;
};

// Errors: bytes that are no such message; a model other than BPE, and rules for text that Quire does not have, by name.
Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

}  // namespace quire::convert
