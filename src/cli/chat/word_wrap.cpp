#include "cli/chat/word_wrap.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/unicode.h"

namespace quire::cli {

void WordWrap::restart() {
  column_ = 0;
  word_.clear();
  word_columns_ = 0;
  begin_.clear();
  code_ = skip_blanks_ = false;
}

void WordWrap::end_line() {
  if (begin_ == "```") code_ = !code_;
  const bool code = code_;
  restart();
  code_ = code;
}

std::string WordWrap::push(std::string_view text) {
  if (columns_ <= 1) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const unicode::Decoded d = unicode::decode(text);
    put(d.code_point, out);
    text.remove_prefix(d.length);
  }
  return out;
}

void WordWrap::put(char32_t c, std::string& out) {
  // The last column stays free: a cursor behind it is on this line for some terminals and on the next for others.
  const int room = columns_ - 1;
  if (c == U'\n') {
    out += '\n';
    return end_line();
  }
  if (begin_.size() < 3 && (c != U' ' || !begin_.empty())) unicode::append_utf8(c, begin_);
  const bool blank = c == U' ' || c == U'\t';
  const int width = c == U'\t' ? 8 - column_ % 8 : std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c)));
  const auto begin_line = [&] {
    out += '\n';
    column_ = 0;
    skip_blanks_ = true;
  };
  if (blank) {
    word_.clear();
    word_columns_ = 0;
    if (skip_blanks_) return;
    if (!code_ && column_ + width > room) return begin_line();
    unicode::append_utf8(c, out);
    column_ = (column_ + width) % columns_;
    return;
  }
  const bool breaks_before = width == 2;  // lines of Chinese and the like break between any two characters
  if (breaks_before) {
    word_.clear();
    word_columns_ = 0;
  }
  if (!code_ && width > 0 && column_ + width > room) {
    if (word_columns_ == 0) {
      begin_line();
    } else if (word_columns_ < column_ && word_columns_ + width <= room) {
      out += fmt::format("\033[{}D\033[K\n{}", word_columns_, word_);
      column_ = word_columns_;
    }
  }
  skip_blanks_ = false;
  unicode::append_utf8(c, out);
  column_ = (column_ + width) % columns_;
  if (breaks_before) return;
  unicode::append_utf8(c, word_);
  word_columns_ += width;
}

}  // namespace quire::cli
