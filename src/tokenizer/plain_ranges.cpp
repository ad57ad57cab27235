#include "tokenizer/plain_ranges.h"

#include <utility>

namespace quire {
namespace {

bool has_control_tokens(const SpecialTokenFinder& trusted, const Vocab& vocab, std::string_view text,
                        std::span<const jinja::ByteRange> plain) {
  SpecialTokenSearch search(trusted, text);
  auto range = plain.begin();
  while (const std::optional<SpecialTokenSearch::Piece> piece = search.next()) {
    while (range != plain.end() && range->end <= piece->begin) ++range;
    if (range == plain.end()) return false;
    if (piece->token >= 0 && vocab.type(piece->token) != TokenType::kUserDefined && range->begin < piece->end)
      return true;
  }
  return false;
}

}  // namespace

PlainRangeSearch::PlainRangeSearch(const SpecialTokenFinder& trusted, const SpecialTokenFinder& user,
                                   const Vocab& vocab, std::string_view text, std::span<const jinja::ByteRange> plain)
    : trusted_(trusted), user_(user), text_(text) {
  if (!plain.empty() && has_control_tokens(trusted, vocab, text, plain)) plain_ = plain;
}

std::optional<PlainRangeSearch::Piece> PlainRangeSearch::next() {
  if (held_) return std::exchange(held_, std::nullopt);
  std::optional<Piece> ordinary;
  while (const std::optional<Piece> p = next_in_stretches()) {
    if (p->token >= 0) {
      if (!ordinary) return p;
      held_ = p;
      break;
    }
    if (ordinary)
      ordinary->end = p->end;
    else
      ordinary = p;
  }
  return ordinary;
}

std::optional<PlainRangeSearch::Piece> PlainRangeSearch::next_in_stretches() {
  for (;;) {
    if (stretch_)
      if (const std::optional<Piece> p = stretch_->next()) return Piece{begin_ + p->begin, begin_ + p->end, p->token};
    if (end_ == text_.size()) return std::nullopt;
    begin_ = end_;
    const bool plain = !plain_.empty() && plain_.front().begin == begin_;
    end_ = plain ? plain_.front().end : plain_.empty() ? text_.size() : plain_.front().begin;
    if (plain) plain_ = plain_.subspan(1);
    stretch_.emplace(plain ? user_ : trusted_, text_.substr(begin_, end_ - begin_));
  }
}

}  // namespace quire
