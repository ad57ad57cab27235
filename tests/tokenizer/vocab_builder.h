// Small vocabularies for tests, written as literals.
#pragma once

#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace quire::test {

// Owns the texts that a TokenizerConfig views. Starts with the 256 byte tokens: id = byte.
class VocabBuilder {
 public:
  explicit VocabBuilder(std::string pre = "qwen2") {
    config_.pre = std::move(pre);
    for (int b = 0; b < 256; ++b) add(std::string(ByteAlphabet::get().letter(static_cast<uint8_t>(b))), 1);
  }
  VocabBuilder(const VocabBuilder&) = delete;

  TokenId add(std::string text, int32_t type) {
    config_.tokens.push_back(texts_.emplace_back(std::move(text)));
    config_.token_types.push_back(type);
    return static_cast<TokenId>(config_.tokens.size() - 1);
  }
  TokenId control(std::string text) { return add(std::move(text), 3); }
  TokenId user_defined(std::string text) { return add(std::move(text), 4); }

  // Adds the merge of two byte strings without a token for the result.
  VocabBuilder& rule(std::string_view left, std::string_view right) {
    const ByteAlphabet& alphabet = ByteAlphabet::get();
    config_.merges.push_back(texts_.emplace_back(alphabet.encode(left) + " " + alphabet.encode(right)));
    return *this;
  }
  // Adds the merge and the token that it makes.
  TokenId merge(std::string_view left, std::string_view right) {
    rule(left, right);
    return add(ByteAlphabet::get().encode(std::string(left).append(right)), 1);
  }
  TokenizerConfig& config() { return config_; }

  // A tokenizer that must be valid.
  Tokenizer build() const {
    auto t = Tokenizer::create(config_);
    QUIRE_CHECK(t.ok(), "{}", t.error().message);
    return std::move(t).value();
  }

 private:
  std::deque<std::string> texts_;
  TokenizerConfig config_;
};

}  // namespace quire::test
