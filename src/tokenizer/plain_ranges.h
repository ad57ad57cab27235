// Special tokens in a text of which some bytes are not to be trusted with control tokens.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "jinja/text.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/vocab.h"

namespace quire {

// What SpecialTokenSearch does with `trusted`, but a control token that lies in a plain range, even in part, is none.
//
// A text without such tokens, which is nearly every one, is cut as if there were no ranges. Where there is one, each
// stretch between the ends of ranges is searched by itself, plain ones with `user`, so that nothing in them decides
// about tokens beside them. Ordinary text goes on across the ends of stretches: words and normalisation do not see
// them.
class PlainRangeSearch {
 public:
  using Piece = SpecialTokenSearch::Piece;

  // All must outlive this. Ranges in order, apart from each other, within the text.
  PlainRangeSearch(const SpecialTokenFinder& trusted, const SpecialTokenFinder& user, const Vocab& vocab,
                   std::string_view text, std::span<const jinja::ByteRange> plain);

  // The next piece; nothing at the end. Pieces tile the text.
  std::optional<Piece> next();

 private:
  std::optional<Piece> next_in_stretches();

  const SpecialTokenFinder &trusted_, &user_;
  std::string_view text_;
  std::span<const jinja::ByteRange> plain_;  // those to come
  std::size_t begin_ = 0, end_ = 0;          // of the stretch
  std::optional<SpecialTokenSearch> stretch_;
  std::optional<Piece> held_;  // a token behind ordinary text that was handed out first
};

}  // namespace quire
