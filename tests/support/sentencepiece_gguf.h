// Small random models with a vocabulary of SentencePiece: most characters are byte tokens only, so that an answer of
// random tokens is full of characters in parts, and of bytes that are none.
#pragma once

#include <string>

namespace quire::test {

enum class SmallVocabulary {
  kLlama,   // tiny-mistral with pieces and scores, a space before each text, and a template with [INST]
  kGemma4,  // tiny-gemma4 with merges, no space, and a template with <|turn>
};

// A complete GGUF file in the temporary directory, removed with the object.
class SentencePieceModelFile {
 public:
  explicit SentencePieceModelFile(SmallVocabulary which);
  SentencePieceModelFile(const SentencePieceModelFile&) = delete;
  ~SentencePieceModelFile();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace quire::test
