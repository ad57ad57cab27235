// The tokens of a model: texts, types, and the bytes that each stands for.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/tokenizer_config.h"

namespace quire {

// Hash of a text with a seed drawn once per process, so that no file can be made whose texts share one
// bucket.
struct SeededHash {
  std::size_t operator()(std::string_view text) const noexcept;
  static uint64_t seed();
};

// What SentencePiece writes for a space, U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
// The text with spaces for the marks.
std::string with_spaces(std::string_view text);

// How the texts of normal tokens spell bytes.
enum class Spelling {
  kByteAlphabet,   // GPT-2's alphabet
  kSentencePiece,  // plain text with ▁ (U+2581) for a space, in user-defined tokens too
};

class Vocab {
 public:
  // Copies what it needs. Errors: no tokens, too few types, an unknown type, two tokens with one text (SentencePiece:
  // the last of them is what find gives; such files exist). An empty text becomes [EMPTY_<id>], as in other engines.
  static Result<Vocab> create(std::span<const std::string_view> tokens, std::span<const int32_t> types,
                              Spelling spelling = Spelling::kByteAlphabet);

  Vocab(Vocab&&) = default;
  Vocab& operator=(Vocab&&) = default;

  int32_t size() const { return static_cast<int32_t>(types_.size()); }
  bool contains(int64_t id) const { return id >= 0 && id < size(); }
  // For 0 <= id < size():
  std::string_view text(TokenId id) const { return texts_.at(id); }   // as stored in the file
  std::string_view bytes(TokenId id) const { return bytes_.at(id); }  // what it stands for; empty for unused tokens
  TokenType type(TokenId id) const { return types_[static_cast<std::size_t>(id)]; }
  void set_type(TokenId id, TokenType type) { types_[static_cast<std::size_t>(id)] = type; }

  std::optional<TokenId> find(std::string_view text) const;
  // The token that BPE may emit for a text in the vocabulary's spelling. Control tokens never: text must not forge
  // them.
  std::optional<TokenId> find_mergeable(std::string_view text) const;

 private:
  // Strings end to end in one block that never moves, so that views of it stay valid when the vocabulary
  // moves.
  struct Arena {
    std::vector<char> chars;
    std::vector<std::size_t> ends;
    void add(std::string_view s);
    std::string_view at(TokenId id) const;
  };

  explicit Vocab(Spelling spelling) : spelling_(spelling) {}
  Status read_types(std::span<const int32_t> types);
  Status index_texts();
  void spell_bytes();

  Spelling spelling_;
  Arena texts_, bytes_;
  std::vector<TokenType> types_;
  std::unordered_map<std::string_view, TokenId, SeededHash> by_text_;
};

}  // namespace quire
