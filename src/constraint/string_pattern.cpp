#include "constraint/string_pattern.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {
namespace {

// The length of one class or character at the beginning; 0: it is none.
size_t atom(std::string_view p) {
  if (p.empty()) return 0;
  if (p.starts_with("\\u{")) return p.find('}') + 1;
  if (p[0] == '\\') return p.size() > 1 && std::string_view("dwsDWS.-_/").find(p[1]) != std::string_view::npos ? 2 : 0;
  if (p[0] == '.') return 1;
  if (p[0] != '[') return std::string_view("()*+?{}|^$]").find(p[0]) == std::string_view::npos && (p[0] & 0x80) == 0;
  size_t i = 1;
  if (i < p.size() && p[i] == '^') ++i;
  for (; i < p.size() && p[i] != ']'; ++i)
    if (p[i] == '\\') ++i;
  return i < p.size() ? i + 1 : 0;
}

// {n}, {n,}, {n,m}, *, + or ?, or nothing.
struct Count {
  int64_t least = 1;
  std::optional<int64_t> most = 1;
};
std::optional<Count> count_of(std::string_view p) {
  if (p.empty()) return Count{};
  if (p == "*") return Count{0, std::nullopt};
  if (p == "+") return Count{1, std::nullopt};
  if (p == "?") return Count{0, 1};
  if (p.size() < 3 || p.front() != '{' || p.back() != '}') return std::nullopt;
  const std::string_view inner = p.substr(1, p.size() - 2);
  const size_t comma = inner.find(',');
  const auto number = [](std::string_view s) -> std::optional<int64_t> {
    if (s.empty() || s.size() > 9 || !std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return std::nullopt;
    return std::stoll(std::string(s));
  };
  const auto least = number(inner.substr(0, comma));
  if (!least) return std::nullopt;
  if (comma == std::string_view::npos) return Count{*least, least};
  if (comma + 1 == inner.size()) return Count{*least, std::nullopt};
  const auto most = number(inner.substr(comma + 1));
  if (!most) return std::nullopt;
  return Count{*least, most};
}

}  // namespace

std::optional<std::string> pattern_of_length(std::string_view pattern, std::optional<int64_t> least,
                                             std::optional<int64_t> most) {
  // Several atoms of which one repeats: the others' lengths are fixed.
  if (!pattern.starts_with('^') || !pattern.ends_with('$') || pattern.ends_with("\\$")) return std::nullopt;
  std::string_view rest = pattern.substr(1, pattern.size() - 2);
  std::string before, after;
  std::optional<std::string> repeated;
  Count count;
  int64_t fixed = 0;
  while (!rest.empty()) {
    const size_t size = atom(rest);
    if (size == 0) return std::nullopt;
    const std::string one(rest.substr(0, size));
    rest.remove_prefix(size);
    size_t end = 0;
    if (!rest.empty() && (rest[0] == '*' || rest[0] == '+' || rest[0] == '?')) end = 1;
    if (!rest.empty() && rest[0] == '{') end = std::min(rest.find('}'), rest.size() - 1) + 1;
    const auto c = count_of(rest.substr(0, end));
    if (!c || (rest.size() > end && end > 0 && rest[end] == '?')) return std::nullopt;
    const std::string text = one + std::string(rest.substr(0, end));
    rest.remove_prefix(end);
    if (c->most && *c->most == c->least) {
      fixed += c->least;
      (repeated ? after : before) += text;
    } else if (!repeated) {
      repeated = one;
      count = *c;
    } else {
      return std::nullopt;
    }
  }
  const int64_t from = least.value_or(0) - fixed;
  const std::optional<int64_t> to = most ? std::optional(*most - fixed) : std::nullopt;
  if (!repeated) {  // of one length
    const bool fits = from <= 0 && (!to || *to >= 0);
    return fits ? std::optional(std::string(pattern)) : std::nullopt;
  }
  const int64_t low = std::max(count.least, from);
  std::optional<int64_t> high = count.most;
  if (to) high = high ? std::min(*high, *to) : *to;
  if (high && *high < low) return std::nullopt;
  return fmt::format("^{}{}{{{},{}}}{}$", before, *repeated, low, high ? std::to_string(*high) : "", after);
}

bool has_format(std::string_view format) {
  for (const std::string_view f :
       {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "json-pointer"})
    if (f == format) return true;
  return false;
}

bool is_exact_format(std::string_view format) {
  return format == "uuid" || format == "ipv4";
}

bool asserts_format(std::string_view format) {
  for (const std::string_view f : {"", "password", "int32", "int64", "float", "double", "byte", "binary"})
    if (f == format) return false;
  return true;
}

bool may_match(std::string_view pattern, std::string_view name) {
  // A name that lacks what every match begins with.
  if (!pattern.starts_with('^')) return true;
  pattern.remove_prefix(1);
  const size_t special = pattern.find_first_of("\\[](){}.*+?|^$");
  if (special == 0 || special == std::string_view::npos)
    return special != std::string_view::npos || name.starts_with(pattern);
  if (pattern.find('|') != std::string_view::npos) return true;
  std::string_view literal = pattern.substr(0, special);
  if (std::string_view("*?{").find(pattern[special]) != std::string_view::npos) literal.remove_suffix(1);
  return name.starts_with(literal);
}

}  // namespace quire
