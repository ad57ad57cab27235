// Methods of strings that answer a question. Positions count characters.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

// text[start:end] of the optional arguments, and where it begins.
struct Window {
  std::string_view text;
  std::int64_t begin;  // characters
  bool valid;          // start is not past the end
};

Window window(const Value& self, Parameters& p) {
  const std::string_view text = self.as_string();
  const Value from = p.optional("start", Value::none()), to = p.optional("end", Value::none());
  p.done();
  if (from.is_none() && to.is_none()) return {text, 0, true};
  const std::int64_t size = length(self);
  const auto bound = [&](const Value& v, std::int64_t otherwise) {
    if (v.is_none()) return otherwise;
    if (!v.is_integral()) fail("{}: positions must be integers or none", p.function());
    return v.as_int() < 0 ? std::max<std::int64_t>(v.as_int() < -size ? 0 : v.as_int() + size, 0) : v.as_int();
  };
  const std::int64_t begin = bound(from, 0), end = std::min(bound(to, size), size);
  if (begin > end || begin > size) return {text.substr(0, 0), begin, false};
  const std::size_t first = utf8::offset(text, static_cast<std::size_t>(begin));
  const std::size_t last = utf8::offset(text, static_cast<std::size_t>(end));
  return {text.substr(first, last - first), begin, true};
}

std::string wanted_text(Parameters& p) {
  const Value v = p.required("sub");
  if (!v.is_string()) fail("{} needs a string, not {}", p.function(), type_name(v));
  return v.as_string();
}

template <bool kFromRight, bool kMustExist>
Value find(Interpreter& in, const Value& self, Parameters& p) {
  const std::string wanted = wanted_text(p);
  const Window w = window(self, p);
  in.budget().step(w.text.size() / 32);
  const std::size_t at = !w.valid ? std::string_view::npos : kFromRight ? w.text.rfind(wanted) : w.text.find(wanted);
  if (at == std::string_view::npos) {
    if (kMustExist) fail("{}: substring not found", p.function());
    return Value::integer(-1);
  }
  return Value::integer(w.begin + static_cast<std::int64_t>(utf8::length(w.text.substr(0, at))));
}

Value count(Interpreter& in, const Value& self, Parameters& p) {
  const std::string wanted = wanted_text(p);
  const Window w = window(self, p);
  in.budget().step(w.text.size() / 32);
  if (!w.valid) return Value::integer(0);
  if (wanted.empty()) return Value::integer(static_cast<std::int64_t>(utf8::length(w.text)) + 1);
  std::int64_t found = 0;
  for (std::size_t at = w.text.find(wanted); at != std::string_view::npos;
       at = w.text.find(wanted, at + wanted.size())) {
    ++found;
  }
  return Value::integer(found);
}

template <bool kEnd>
Value starts_or_ends(Interpreter&, const Value& self, Parameters& p) {
  const Value wanted = p.required("prefix");
  const Window w = window(self, p);
  const auto matches = [&](const Value& v) {
    if (!v.is_string()) fail("{} needs a string or a tuple of strings, not {}", p.function(), type_name(v));
    return w.valid && (kEnd ? w.text.ends_with(v.as_string()) : w.text.starts_with(v.as_string()));
  };
  if (!wanted.is(Kind::kTuple)) return Value::boolean(matches(wanted));
  return Value::boolean(std::any_of(wanted.items().begin(), wanted.items().end(), matches));
}

template <bool (*Is)(char32_t)>
Value all_chars(Interpreter& in, const Value& self, Parameters& p) {
  p.done();
  const std::string_view text = self.as_string();
  in.budget().step(text.size() / 32);
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Char c = utf8::decode(text, at);
    if (!Is(c.code)) return Value::boolean(false);
    at += c.size;
  }
  return Value::boolean(!text.empty());
}

Value is_printable(Interpreter& in, const Value& self, Parameters& p) {
  return self.as_string().empty() ? Value::boolean(true) : all_chars<utf8::is_printable>(in, self, p);
}

Value is_ascii(Interpreter&, const Value& self, Parameters& p) {
  p.done();
  return Value::boolean(utf8::is_ascii(self.as_string()));
}

Value is_identifier(Interpreter& in, const Value& self, Parameters& p) {
  const std::string& text = self.as_string();
  if (text.empty() || utf8::is_numeric(utf8::decode(text, 0).code)) return Value::boolean(false);
  return all_chars<utf8::is_word>(in, self, p);
}

template <bool kUpper>
Value is_case(Interpreter& in, const Value& self, Parameters& p) {
  p.done();
  Arguments none;
  return Value::boolean(in.apply_test(kUpper ? "upper" : "lower", self, none));
}

Value is_title(Interpreter&, const Value& self, Parameters& p) {
  p.done();
  const std::string_view text = self.as_string();
  bool in_word = false, any = false;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Char c = utf8::decode(text, at);
    const bool cased = utf8::is_cased(c.code);
    if (cased && (in_word ? !utf8::is_lower(c.code) : utf8::is_lower(c.code))) return Value::boolean(false);
    any |= cased;
    in_word = cased;
    at += c.size;
  }
  return Value::boolean(any);
}

constexpr Named<FilterFn> kMethods[] = {
    {"count", count},
    {"endswith", starts_or_ends<true>},
    {"find", find<false, false>},
    {"index", find<false, true>},
    {"isalnum", all_chars<utf8::is_alnum>},
    {"isalpha", all_chars<utf8::is_alpha>},
    {"isascii", is_ascii},
    {"isdecimal", all_chars<utf8::is_decimal>},
    {"isdigit", all_chars<utf8::is_digit>},
    {"isidentifier", is_identifier},
    {"islower", is_case<false>},
    {"isnumeric", all_chars<utf8::is_numeric>},
    {"isprintable", is_printable},
    {"isspace", all_chars<utf8::is_space>},
    {"istitle", is_title},
    {"isupper", is_case<true>},
    {"rfind", find<true, false>},
    {"rindex", find<true, true>},
    {"startswith", starts_or_ends<false>},
};

}  // namespace

std::span<const Named<FilterFn>> string_query_methods() {
  return kMethods;
}

}  // namespace quire::jinja
