#include "tokenizer/sentencepiece.h"

#include <algorithm>

#include "core/utf8.h"

namespace quire {

bool SentencePiece::adds_space(const Before& before, const Vocab& vocab) const {
  switch (space_prefix_) {
    case SpacePrefix::kNever:
      return false;
    case SpacePrefix::kPrepend:
    case SpacePrefix::kMetaspaceAlways:
      return before.nothing || before.special.has_value();
    case SpacePrefix::kMetaspaceFirst:
      return before.nothing;
    case SpacePrefix::kAfterControl:
      return before.nothing || (before.special && vocab.type(*before.special) != TokenType::kUserDefined);
  }
  return false;
}

// With marks for spaces, and always valid UTF-8.
void SentencePiece::normalise(std::string_view text, bool prefix, std::string& out) const {
  out.clear();
  if (remove_extra_spaces_) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    if (text.empty()) return;
  }
  if (prefix) out += kSpaceMark;
  bool after_space = false;
  while (!text.empty()) {
    const unicode::Decoded d = unicode::decode(text);
    const bool space = d.code_point == U' ';
    if (space && !(after_space && remove_extra_spaces_))
      out += kSpaceMark;
    else if (d.status == unicode::Utf8::kValid && !space)
      out += text.substr(0, d.length);
    else if (!space)
      unicode::append_utf8(unicode::kReplacement, out);
    after_space = space;
    text.remove_prefix(d.status == unicode::Utf8::kValid ? d.length : 1);
  }
  // Marks in the text are no spaces above, and here they are: sentencepiece has it so.
  while (remove_extra_spaces_ && out.ends_with(kSpaceMark)) out.resize(out.size() - kSpaceMark.size());
}

void SentencePiece::encode(std::string_view text, const Before& before, const Vocab& vocab, EncodeState& state) const {
  const bool spaced = text.starts_with(' ') || text.starts_with(kSpaceMark);
  const bool unless_spaced =
      space_prefix_ == SpacePrefix::kMetaspaceAlways || space_prefix_ == SpacePrefix::kMetaspaceFirst;
  normalise(text, adds_space(before, vocab) && !(spaced && unless_spaced), state.text);
  state.stretch_begin = state.tokens.size();
  const std::string_view all = state.text;
  std::size_t begin = 0;
  char32_t previous = 0;
  for (std::size_t i = 0; i < all.size();) {
    const unicode::Decoded d = unicode::decode(all.substr(i));
    const bool other_line = cut_at_newlines_ && (previous == U'\n') != (d.code_point == U'\n');
    if (i > begin && (other_line || !inner_pairs_.contains(previous, d.code_point))) {
      encode_word(all.substr(begin, i - begin), vocab, state);
      begin = i;
    }
    previous = d.code_point;
    i += d.length;
  }
  if (begin < all.size()) encode_word(all.substr(begin), vocab, state);
}

void SentencePiece::encode_word(std::string_view word, const Vocab& vocab, EncodeState& state) const {
  if (cut_at_newlines_ && word.front() == '\n') {
    if (const auto whole = vocab.find_mergeable(word)) return state.tokens.push_back(*whole);
  }
  if (!state.use_cache || unknown_) return append_tokens(word, state);
  if (const auto known = state.cache.find(word); !known.empty()) {
    state.tokens.insert(state.tokens.end(), known.begin(), known.end());
    return;
  }
  const std::size_t before = state.tokens.size();
  append_tokens(word, state);
  state.cache.put(word, std::span(state.tokens).subspan(before));
}

void SentencePiece::append_tokens(std::string_view word, EncodeState& state) const {
  uint32_t n = 0;
  for (const char c : word) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
  auto& nodes = state.scratch.nodes;
  state.scratch.reset(n);
  std::size_t at = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const unicode::Decoded d = unicode::decode(word.substr(at));
    nodes[i].symbol = symbols_.find(d.code_point);
    at += d.length;
  }
  if (n > 1) rules_.apply(state.scratch);

  // Merges make tokens only, so what is none is one character. `at` is where character `seen` begins.
  at = 0;
  for (uint32_t i = 0, seen = 0; i != MergeRules::kNone; i = nodes[i].next) {
    if (nodes[i].symbol < token_count_) {
      state.tokens.push_back(static_cast<TokenId>(nodes[i].symbol));
      continue;
    }
    for (; seen < i; ++seen) at += unicode::decode(word.substr(at)).length;
    append_unknown(word.substr(at, unicode::decode(word.substr(at)).length), state);
  }
}

// A run of unknown characters is one unknown token, as in the originals.
void SentencePiece::append_unknown(std::string_view character, EncodeState& state) const {
  std::vector<TokenId>& out = state.tokens;
  const auto missing = [this](char c) { return byte_tokens_[static_cast<uint8_t>(c)] == kNoToken; };
  if (unknown_ && std::any_of(character.begin(), character.end(), missing)) {
    if (out.size() == state.stretch_begin || out.back() != *unknown_) out.push_back(*unknown_);
    return;
  }
  for (const char c : character) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
}

}  // namespace quire
