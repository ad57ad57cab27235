#include "tokenizer/vocab.h"

#include <cstring>
#include <limits>
#include <random>

#include "gguf/metadata.h"
#include "tokenizer/byte_alphabet.h"

namespace quire {
namespace {

// <0x0A> -> the byte 10, else nothing.
std::optional<char> byte_token_value(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return {};
  const int high = digit(text[3]), low = digit(text[4]);
  if (high < 0 || low < 0) return {};
  return static_cast<char>(high * 16 + low);
}

bool is_printable_ascii(std::string_view text) {
  for (const char c : text) {
    if (c < 0x21 || c > 0x7E) return false;
  }
  return true;
}

}  // namespace

std::string with_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const bool space = text.starts_with(kSpaceMark);
    out += space ? ' ' : text.front();
    text.remove_prefix(space ? kSpaceMark.size() : 1);
  }
  return out;
}

uint64_t SeededHash::seed() {
  static const uint64_t value = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  return value;
}

std::size_t SeededHash::operator()(std::string_view text) const noexcept {
  static const uint64_t start = seed();
  uint64_t h = start ^ text.size();
  const auto mix = [&](uint64_t x) {
    const auto product = static_cast<unsigned __int128>(x ^ h) * (start | 1);
    h = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64) ^ 0x9E3779B97F4A7C15u;
  };
  while (text.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    mix(word);
    text.remove_prefix(8);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, text.data(), text.size());
  mix(tail);
  mix(h >> 32);
  return h;
}

void Vocab::Arena::add(std::string_view s) {
  chars.insert(chars.end(), s.begin(), s.end());
  ends.push_back(chars.size());
}

std::string_view Vocab::Arena::at(TokenId id) const {
  const auto i = static_cast<std::size_t>(id);
  const std::size_t begin = i == 0 ? 0 : ends[i - 1];
  return {chars.data() + begin, ends[i] - begin};
}

Result<Vocab> Vocab::create(std::span<const std::string_view> tokens, std::span<const int32_t> types,
                            Spelling spelling) {
  if (tokens.empty()) return file_error("tokenizer.ggml.tokens is empty: the model has no vocabulary");
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<TokenId>::max())) {
    return file_error("tokenizer.ggml.tokens has {} entries, more than token ids can number", tokens.size());
  }
  Vocab v(spelling);
  v.types_.assign(tokens.size(), TokenType::kNormal);
  QUIRE_CHECKED(v.read_types(types));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    v.texts_.add(tokens[i].empty() ? fmt::format("[EMPTY_{}]", i) : tokens[i]);
  }
  QUIRE_CHECKED(v.index_texts());
  v.spell_bytes();
  return v;
}

Status Vocab::read_types(std::span<const int32_t> types) {
  if (types.empty()) return {};
  if (types.size() < types_.size()) {
    return file_error("tokenizer.ggml.token_type has {} entries for {} tokens", types.size(), types_.size());
  }
  for (std::size_t i = 0; i < types_.size(); ++i) {
    if (types[i] < 0 || types[i] > static_cast<int32_t>(TokenType::kByte)) {
      return file_error("tokenizer.ggml.token_type[{}] is {}; types go from 0 to 6", i, types[i]);
    }
    types_[i] = static_cast<TokenType>(types[i]);
  }
  return {};
}

Status Vocab::index_texts() {
  by_text_.reserve(types_.size());
  for (TokenId id = 0; id < size(); ++id) {
    const auto [it, inserted] = by_text_.emplace(text(id), id);
    if (!inserted && spelling_ == Spelling::kSentencePiece) {
      it->second = id;
    } else if (!inserted) {
      return file_error("tokenizer.ggml.tokens: tokens {} and {} have the same text {}", it->second, id,
                        gguf::printable(text(id)));
    }
  }
  return {};
}

void Vocab::spell_bytes() {
  const ByteAlphabet& alphabet = ByteAlphabet::get();
  const bool sentencepiece = spelling_ == Spelling::kSentencePiece;
  for (TokenId id = 0; id < size(); ++id) {
    const std::string_view t = text(id);
    switch (type(id)) {
      case TokenType::kNormal:  // a text that is not in the alphabet stands for itself
        bytes_.add(sentencepiece ? with_spaces(t) : alphabet.decode(t).value_or(std::string(t)));
        break;
      case TokenType::kUserDefined:
        bytes_.add(sentencepiece ? with_spaces(t) : t);
        break;
      case TokenType::kUnknown:
      case TokenType::kControl:
        bytes_.add(t);
        break;
      case TokenType::kByte: {
        const std::optional<char> value = byte_token_value(t);
        bytes_.add(value ? std::string_view(&*value, 1) : std::string_view());
        break;
      }
      case TokenType::kUndefined:
      case TokenType::kUnused:
        bytes_.add({});
        break;
    }
  }
}

std::optional<TokenId> Vocab::find(std::string_view text) const {
  const auto it = by_text_.find(text);
  if (it == by_text_.end()) return {};
  return it->second;
}

std::optional<TokenId> Vocab::find_mergeable(std::string_view text) const {
  const std::optional<TokenId> id = find(text);
  if (!id) return {};
  if (type(*id) == TokenType::kNormal) return id;
  // A user-defined token is written in plain text, which is the byte alphabet as long as it is printable
  // ASCII.
  const bool same_spelling = spelling_ == Spelling::kSentencePiece || is_printable_ascii(text);
  if (type(*id) == TokenType::kUserDefined && same_spelling) return id;
  return {};
}

}  // namespace quire
