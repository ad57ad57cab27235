#include "tokenizer/detokenizer.h"

#include "tokenizer/unicode.h"

namespace quire {

std::string StreamDetokenizer::push(TokenId token) {
  held_ += tokenizer_->token_bytes(token, render_special_);
  // A character has at most 4 bytes, so the one that is cut off can only begin in the last 3.
  std::size_t keep = std::min<std::size_t>(3, held_.size());
  while (keep > 0 &&
         unicode::decode(std::string_view(held_).substr(held_.size() - keep)).status != unicode::Utf8::kTruncated) {
    --keep;
  }
  const std::size_t ready = held_.size() - keep;
  std::string text = tokenizer_->repaired(std::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
  return shown(std::move(text));
}

std::string StreamDetokenizer::shown(std::string text) {
  if (!at_begin_ || text.empty()) return text;
  text.erase(0, tokenizer_->dropped_spaces(text));
  at_begin_ = text.empty() && tokenizer_->drops_all_spaces();
  return text;
}

std::string StreamDetokenizer::flush() {
  std::string text = shown(tokenizer_->repaired(held_));
  held_.clear();
  at_begin_ = drops_space_;
  return text;
}

}  // namespace quire
