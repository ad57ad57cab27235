#include "constraint/lark.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "constraint/pattern_reader.h"
#include "core/utf8.h"

namespace quire {
namespace {

constexpr int kMostTerminals = 2000;  // the library recurses from one to the next

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_number(char c) {
  return c >= '0' && c <= '9';
}
bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

class Lark {
 public:
  explicit Lark(std::string_view grammar) : g_(grammar) {}

  Result<std::string> translate() {
    bool line_begins = true;
    while (at_ < g_.size() && error_.empty()) {
      const char c = g_[at_];
      if (c == '\n') {
        ++line_;
        copy(1);
        line_begins = true;
        continue;
      }
      if (c == '#' || g_.substr(at_).starts_with("//"))
        at_ = std::min(g_.find('\n', at_), g_.size());
      else if (line_begins && (is_name(c) || c == '?' || c == '!'))
        name_of_definition();
      else if (c == '"')
        text();
      else if (c == '/')
        expression();
      else if (c == '%')
        directive();
      else if (c == '@' || c == '<')
        fail(fmt::format("'{}' is no part of Lark", c));
      else if (c == '\0')
        fail("it holds a NUL");
      else
        copy(1);
      line_begins = line_begins && is_blank(c);
    }
    if (!error_.empty()) return request_error("line {}: {}", line_, error_);
    return std::move(out_);
  }

 private:
  void fail(std::string what) { error_ = std::move(what); }
  void copy(size_t count) {
    out_ += g_.substr(at_, count);
    at_ += count;
  }

  // NAME: or NAME.PRIORITY:
  void name_of_definition() {
    if (g_[at_] == '?' || g_[at_] == '!') copy(1);
    size_t end = at_;
    while (end < g_.size() && is_name(g_[end])) ++end;
    const std::string_view name = g_.substr(at_, end - at_);
    copy(end - at_);
    const size_t first = name.find_first_not_of('_');
    if (first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z' && ++terminals_ > kMostTerminals)
      return fail(fmt::format("it has more than {} terminals", kMostTerminals));
    if (at_ >= g_.size() || g_[at_] != '.') return;
    size_t colon = at_ + 1;
    if (colon < g_.size() && g_[colon] == '-') ++colon;
    const size_t digits = colon;
    while (colon < g_.size() && is_number(g_[colon])) ++colon;
    const size_t end_of_number = colon;
    while (colon < g_.size() && is_blank(g_[colon])) ++colon;
    if (end_of_number > digits && colon < g_.size() && g_[colon] == ':') at_ = colon;
  }

  void directive() {
    size_t end = at_ + 1;
    while (end < g_.size() && is_name(g_[end])) ++end;
    const std::string_view name = g_.substr(at_, end - at_);
    if (name == "%json" || name == "%lark" || name == "%regex" || name == "%grammar_options" || name == "%if")
      return fail(fmt::format("'{}' is no part of Lark", name));
    copy(end - at_);
  }

  // What is between this delimiter and the next one, with its escapes; none: there is no next one on this line.
  std::optional<std::string_view> delimited(char delimiter) {
    size_t end = at_ + 1;
    while (end < g_.size() && g_[end] != delimiter && g_[end] != '\n') end += g_[end] == '\\' ? 2 : 1;
    if (end >= g_.size() || g_[end] == '\n') {
      fail(fmt::format("a {} is not closed", delimiter));
      return std::nullopt;
    }
    const std::string_view inner = g_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inner;
  }
  std::string_view flags() {
    const size_t begin = at_;
    while (at_ < g_.size() && g_[at_] >= 'a' && g_[at_] <= 'z') ++at_;
    return g_.substr(begin, at_ - begin);
  }

  // A text with Python's escapes becomes one with JSON's.
  void text() {
    const std::optional<std::string_view> inner = delimited('"');
    if (!inner) return;
    const std::optional<std::string> value = unescaped(*inner);
    if (!value) return;
    const std::string_view after = flags();
    if (after == "i") return case_insensitive(*value);
    if (!after.empty()) return fail(fmt::format("a text has the flag '{}': there is only 'i'", after));
    out_ += nlohmann::json(*value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  // The library knows no other case of letters than ASCII's.
  void case_insensitive(const std::string& value) {
    if (value.empty()) return fail("an empty text has the flag 'i'");
    std::string pattern = "(?i)";
    for (const char c : value) {
      if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) pattern += '\\';
      pattern += c;
    }
    write(pattern);
  }

  std::optional<std::string> unescaped(std::string_view inner) {
    constexpr std::string_view kNames = "tnrfvab\\\"'/", kValues = "\t\n\r\f\v\a\b\\\"'/";
    std::string value;
    for (size_t i = 0; i < inner.size(); ++i) {
      if (inner[i] != '\\') {
        value += inner[i];
        continue;
      }
      const char c = inner[++i];  // delimited() leaves no lone one at the end
      if (const size_t known = kNames.find(c); known != std::string_view::npos) {
        value += kValues[known];
        continue;
      }
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      const std::string hex(inner.substr(i + 1, digits));
      if (digits == 0 || hex.size() < digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
        fail(
            fmt::format("there is no escape \\{} in a text (\\xHH, \\uHHHH and \\UHHHHHHHH have all their digits)", c));
        return std::nullopt;
      }
      const auto code = static_cast<char32_t>(std::stoul(hex, nullptr, 16));
      if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
        fail(fmt::format("\\{}{} is no character", c, hex));
        return std::nullopt;
      }
      unicode::append_utf8(code, value);
      i += digits;
    }
    return value;
  }

  void expression() {
    const std::optional<std::string_view> inner = delimited('/');
    if (!inner) return;
    const std::string_view after = flags();
    write(after.empty() ? std::string(*inner) : fmt::format("(?{}){}", after, *inner));
  }

  // The pattern, between slashes.
  void write(const std::string& pattern) {
    std::variant<std::string, PatternProblem> read = canonical_pattern(pattern);
    if (const auto* const problem = std::get_if<PatternProblem>(&read))
      return fail(fmt::format("a regular expression cannot be used: {}", problem->what));
    const std::string& canonical = std::get<std::string>(read);
    if (canonical.empty()) {  // two slashes begin a comment
      out_ += "\"\"";
      return;
    }
    out_ += '/';
    bool escaped = false;
    for (const char c : canonical) {
      if (c == '/' && !escaped) out_ += '\\';
      out_ += c;
      escaped = c == '\\' && !escaped;
    }
    out_ += '/';
  }

  std::string_view g_;
  size_t at_ = 0;
  int line_ = 1, terminals_ = 0;
  std::string out_, error_;
};

}  // namespace

bool is_lark(std::string_view grammar) {
  while (!grammar.empty()) {
    const size_t end = std::min(grammar.find('\n'), grammar.size());
    std::string_view line = grammar.substr(0, end);
    line = line.substr(0, std::min(line.find('#'), line.find("//")));
    if (line.find("::=") != std::string_view::npos) return false;
    grammar.remove_prefix(std::min(end + 1, grammar.size()));
  }
  return true;
}

Result<std::string> plain_lark(std::string_view grammar) {
  return Lark(grammar).translate();
}

}  // namespace quire
