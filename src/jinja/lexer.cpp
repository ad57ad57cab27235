#include "jinja/lexer.h"

#include <algorithm>
#include <optional>

#include "jinja/error.h"
#include "jinja/utf8.h"

namespace quire::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// \r\n and \r become \n; one newline at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
    } else {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_text();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  enum class Tag { kPrint, kBlock, kComment, kRaw };
  struct Opening {
    std::size_t begin, end;  // the delimiter, with its sign (and, for raw, the whole tag)
    Tag tag;
    char sign;         // '-', '+' or 0
    bool strip_after;  // raw only: it ended with -%}
  };

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  bool starts_with(std::size_t at, std::string_view what) const { return source_.compare(at, what.size(), what) == 0; }
  std::size_t skip_space(std::size_t at) const {
    const std::string_view rest = std::string_view(source_).substr(at);
    return at + rest.size() - utf8::strip_left(rest).size();
  }
  void advance_to(std::size_t at) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    if (at > at_) line_starting_ = source_[at - 1] == '\n';
    at_ = at;
  }

  // `{%- raw -%}` or `{%- endraw -%}` at `at`: where it ends, and how.
  struct RawTag {
    std::size_t end;
    char sign;
    char end_sign;
  };
  std::optional<RawTag> raw_tag(std::size_t at, std::string_view name) const {
    if (!starts_with(at, "{%")) return std::nullopt;
    at += 2;
    char sign = 0, end_sign = 0;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) sign = source_[at++];
    at = skip_space(at);
    if (!starts_with(at, name)) return std::nullopt;
    at = skip_space(at + name.size());
    if (at < source_.size() && (source_[at] == '-' || (source_[at] == '+' && name == "endraw"))) {
      end_sign = source_[at++];
    }
    if (!starts_with(at, "%}")) return std::nullopt;
    return RawTag{at + 2, sign, end_sign};
  }

  std::optional<Opening> next_opening() const {
    for (std::size_t at = source_.find('{', at_); at != std::string::npos; at = source_.find('{', at + 1)) {
      if (at + 1 >= source_.size()) break;
      const char kind = source_[at + 1];
      if (kind != '{' && kind != '%' && kind != '#') continue;
      if (const auto raw = raw_tag(at, "raw")) return Opening{at, raw->end, Tag::kRaw, raw->sign, raw->end_sign == '-'};
      const bool has_sign = at + 2 < source_.size() && (source_[at + 2] == '-' || source_[at + 2] == '+');
      const Tag tag = kind == '{' ? Tag::kPrint : kind == '%' ? Tag::kBlock : Tag::kComment;
      return Opening{at, at + (has_sign ? 3 : 2), tag, has_sign ? source_[at + 2] : '\0', false};
    }
    return std::nullopt;
  }

  // What remains of the text before a tag.
  std::string_view strip_before(std::string_view text, char sign, bool variable) const {
    if (sign == '-') return utf8::strip_right(text);
    if (sign == '+' || variable) return text;
    const std::size_t newline = text.rfind('\n');
    const std::size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return text;
    const std::string_view last_line = text.substr(line_begin);
    return utf8::strip_left(last_line).empty() ? text.substr(0, line_begin) : text;
  }

  // After `%}` or `#}`: `-` eats all white space, `+` nothing, otherwise one newline goes.
  std::size_t after_end(std::size_t at, char sign) const {
    if (sign == '-') return skip_space(at);
    if (sign != '+' && at < source_.size() && source_[at] == '\n') return at + 1;
    return at;
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  void lex_text() {
    const auto opening = next_opening();
    if (!opening) {
      add_text(std::string_view(source_).substr(at_));
      advance_to(source_.size());
      return;
    }
    const std::string_view text = std::string_view(source_).substr(at_, opening->begin - at_);
    add_text(strip_before(text, opening->sign, opening->tag == Tag::kPrint));
    advance_to(opening->end);
    switch (opening->tag) {
      case Tag::kComment:
        return lex_comment();
      case Tag::kRaw:
        return lex_raw(opening->strip_after);
      case Tag::kPrint:
        add(TokenKind::kPrintBegin, "{{");
        return lex_code("}}", TokenKind::kPrintEnd);
      case Tag::kBlock:
        add(TokenKind::kBlockBegin, "{%");
        return lex_code("%}", TokenKind::kBlockEnd);
    }
  }

  void lex_comment() {
    const int begin_line = line_;
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_at(begin_line, "the comment has no end: '#}}' is missing");
    const char sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? source_[end - 1] : '\0';
    advance_to(after_end(end + 2, sign));
  }

  void lex_raw(bool strip_after) {
    const int begin_line = line_;
    if (strip_after) advance_to(skip_space(at_));
    for (std::size_t at = source_.find("{%", at_); at != std::string::npos; at = source_.find("{%", at + 1)) {
      const auto end = raw_tag(at, "endraw");
      if (!end) continue;
      add_text(strip_before(std::string_view(source_).substr(at_, at - at_), end->sign, false));
      advance_to(after_end(end->end, end->end_sign));
      return;
    }
    fail_at(begin_line, "the raw block has no end: '{{% endraw %}}' is missing");
  }

  void lex_code(std::string_view closing, TokenKind closing_kind) {
    const int begin_line = line_;
    std::string brackets;
    while (true) {
      advance_to(skip_space(at_));
      if (at_ >= source_.size()) fail_at(begin_line, "the tag has no end: '{}' is missing", closing);
      if (brackets.empty() && lex_closing(closing, closing_kind)) return;
      const char c = source_[at_];
      if (is_digit(c)) {
        lex_number();
      } else if (c == '\'' || c == '"') {
        lex_string(c);
      } else if (!lex_name()) {
        lex_operator(brackets);
      }
    }
  }

  bool lex_closing(std::string_view closing, TokenKind kind) {
    const char c = source_[at_];
    const bool block = kind == TokenKind::kBlockEnd;
    const char sign = c == '-' || (c == '+' && block) ? c : '\0';
    const std::size_t begin = at_ + (sign ? 1 : 0);
    if (!starts_with(begin, closing)) return false;
    add(kind, std::string(closing));
    const std::size_t end = begin + closing.size();
    advance_to(block ? after_end(end, sign) : sign ? skip_space(end) : end);
    return true;
  }

  // Digits with single underscores between them; the end, or `at` when there are none.
  template <class Is>
  std::size_t digits(std::size_t at, Is is) const {
    std::size_t end = at;
    while (end < source_.size()) {
      if (is(source_[end])) {
        ++end;
      } else if (source_[end] == '_' && end > at && end + 1 < source_.size() && is(source_[end + 1])) {
        end += 2;
      } else {
        break;
      }
    }
    return end;
  }

  void lex_number() {
    const bool after_dot =
        !tokens_.empty() && tokens_.back().text == "." && tokens_.back().kind == TokenKind::kOperator;
    if (!after_dot) {
      if (const std::size_t end = float_end(); end > at_) return take_number(TokenKind::kFloat, end);
    }
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char radix = static_cast<char>(source_[at_ + 1] | 0x20);
      const std::size_t begin = at_ + 2 + (at_ + 2 < source_.size() && source_[at_ + 2] == '_' ? 1 : 0);
      std::size_t end = begin;
      if (radix == 'x') end = digits(begin, is_hex);
      if (radix == 'o') end = digits(begin, [](char c) { return c >= '0' && c <= '7'; });
      if (radix == 'b') end = digits(begin, [](char c) { return c == '0' || c == '1'; });
      if (end > begin) return take_number(TokenKind::kInteger, end);
    }
    // A leading zero stands for itself only: 007 is three tokens, and a syntax error later.
    take_number(TokenKind::kInteger,
                source_[at_] == '0' ? digits(at_, [](char c) { return c == '0'; }) : digits(at_, is_digit));
  }

  std::size_t float_end() const {
    std::size_t end = digits(at_, is_digit);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      end = digits(end + 1, is_digit);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      std::size_t begin = end + 1;
      if (begin < source_.size() && (source_[begin] == '+' || source_[begin] == '-')) ++begin;
      if (begin < source_.size() && is_digit(source_[begin])) {
        end = digits(begin, is_digit);
        is_float = true;
      }
    }
    return is_float ? end : at_;
  }

  void take_number(TokenKind kind, std::size_t end) {
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(kind, std::move(text));
    advance_to(end);
  }

  bool lex_name() {
    std::size_t end = at_;
    while (end < source_.size()) {
      const utf8::Char c = utf8::decode(source_, end);
      if (!utf8::is_word(c.code)) break;
      end += c.size;
    }
    if (end == at_) return false;
    add(TokenKind::kName, source_.substr(at_, end - at_));
    advance_to(end);
    return true;
  }

  void lex_string(char quote) {
    const int begin_line = line_;
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_at(begin_line, "the string that starts here has no end");
    std::string text = unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1));
    add(TokenKind::kString, std::move(text));
    advance_to(end + 1);
  }

  // Python's escapes; an unknown one stays as it stands.
  std::string unescape(std::string_view text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 >= text.size()) {
        out.push_back(text[i]);
        continue;
      }
      const char c = text[++i];
      static constexpr std::string_view kNames = "\\'\"abfnrtv", kCodes = "\\'\"\a\b\f\n\r\t\v";
      if (const auto known = kNames.find(c); known != std::string_view::npos) {
        out.push_back(kCodes[known]);
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        utf8::append(out, hex_escape(text.substr(i + 1), count));
        i += count;
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        std::size_t count = 0;
        while (count < 3 && i + count < text.size() && text[i + count] >= '0' && text[i + count] <= '7') {
          code = code * 8 + static_cast<char32_t>(text[i + count++] - '0');
        }
        utf8::append(out, code);
        i += count - 1;
      } else if (c == 'N') {
        fail_at(line_, "characters by name (\\N) are not supported");
      } else {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  char32_t hex_escape(std::string_view text, std::size_t count) const {
    std::uint64_t code = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (i >= text.size() || !is_hex(text[i]))
        fail_at(line_, "a \\x, \\u or \\U escape has too few hexadecimal digits");
      const char c = text[i];
      code = code * 16 + static_cast<std::uint64_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail_at(line_, "U+{:04X} is not a character", code);
    return static_cast<char32_t>(code);
  }

  void lex_operator(std::string& brackets) {
    static constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view op : kPairs) {
      if (starts_with(at_, op)) {
        add(TokenKind::kOperator, std::string(op));
        return advance_to(at_ + 2);
      }
    }
    const char c = source_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      fail_at(line_, "unexpected character '{}'", source_.substr(at_, utf8::decode(source_, at_).size));
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty()) fail_at(line_, "unexpected '{}'", c);
      if (brackets.back() != c) fail_at(line_, "unexpected '{}', expected '{}'", c, brackets.back());
      brackets.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    advance_to(at_ + 1);
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const Limits& limits) {
  if (source.size() > limits.max_source_bytes) {
    fail("the template has {} bytes; at most {} are accepted", source.size(), limits.max_source_bytes);
  }
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace quire::jinja
