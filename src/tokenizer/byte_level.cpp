#include "tokenizer/byte_level.h"

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/unicode.h"

namespace quire {

void ByteLevel::encode(std::string_view text, const Before&, const Vocab& vocab, EncodeState& state) const {
  std::u32string& code_points = state.code_points;
  code_points.clear();
  unicode::append_code_points(text, code_points);
  if (pretokenizer_.nfc) unicode::nfc(code_points);
  for (std::size_t i = 0; i < code_points.size();) {
    const std::size_t end = word_end(pretokenizer_.splitter, code_points, i);
    QUIRE_CHECK(end > i && end <= code_points.size(), "word [{}, {}) of {}", i, end, code_points.size());
    state.word.clear();
    for (; i < end; ++i) unicode::append_utf8(code_points[i], state.word);
    encode_word(state.word, vocab, state);
  }
}

void ByteLevel::encode_word(std::string_view word, const Vocab& vocab, EncodeState& state) const {
  if (state.use_cache) {
    const auto known = state.cache.find(word);
    if (!known.empty()) {
      state.tokens.insert(state.tokens.end(), known.begin(), known.end());
      return;
    }
  }
  const std::size_t before = state.tokens.size();
  std::optional<TokenId> whole;
  if (pretokenizer_.ignore_merges) whole = vocab.find_mergeable(ByteAlphabet::get().encode(word));
  if (whole) {
    state.tokens.push_back(*whole);
  } else {
    bpe_.encode(word, state.scratch, state.tokens);
  }
  if (state.use_cache) state.cache.put(word, std::span(state.tokens).subspan(before));
}

}  // namespace quire
