// str() and repr() of values, and numbers from and to text.
#include <charconv>
#include <cmath>

#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

void add_string_repr(StringBuilder& out, const Text& string) {
  const std::string_view text = string.bytes;
  const bool single = text.find('\'') != std::string_view::npos;
  const bool twice = text.find('"') != std::string_view::npos;
  const char quote = single && !twice ? '"' : '\'';
  out.add(quote);
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Char c = utf8::decode(text, at);
    const std::string_view piece = text.substr(at, c.size);
    const auto code = static_cast<unsigned>(c.code);
    if (c.code == static_cast<char32_t>(quote) || c.code == '\\') {
      out.add_for(string, piece, std::string{'\\', static_cast<char>(c.code)});
    } else if (c.code == '\n') {
      out.add_for(string, piece, "\\n");
    } else if (c.code == '\r') {
      out.add_for(string, piece, "\\r");
    } else if (c.code == '\t') {
      out.add_for(string, piece, "\\t");
    } else if (c.code == ' ' || utf8::is_printable(c.code)) {
      out.add(string, piece);
    } else if (c.code <= 0xFF) {
      out.add_for(string, piece, fmt::format("\\x{:02x}", code));
    } else if (c.code <= 0xFFFF) {
      out.add_for(string, piece, fmt::format("\\u{:04x}", code));
    } else {
      out.add_for(string, piece, fmt::format("\\U{:08x}", code));
    }
    at += c.size;
  }
  out.add(quote);
}

void add_repr(StringBuilder& out, Budget& budget, const Value& v);

void add_items(StringBuilder& out, Budget& budget, const std::vector<Value>& items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.add(", ");
    add_repr(out, budget, items[i]);
  }
}

void add_view_repr(StringBuilder& out, Budget& budget, const Value& v) {
  const DictView& view = v.as_view();
  out.add(type_name(v));
  out.add("([");
  for (std::size_t i = 0; i < view.dict->entries.size(); ++i) {
    if (i > 0) out.add(", ");
    add_repr(out, budget, view.at(budget, i));
  }
  out.add("])");
}

void add_repr(StringBuilder& out, Budget& budget, const Value& v) {
  budget.step();
  switch (v.kind()) {
    case Kind::kUndefined:
      return out.add("Undefined");
    case Kind::kNone:
      return out.add("None");
    case Kind::kBool:
      return out.add(v.as_bool() ? "True" : "False");
    case Kind::kInt:
      return out.add(fmt::format("{}", v.as_int()));
    case Kind::kFloat:
      return out.add(float_repr(v.as_float()));
    case Kind::kString:
      if (v.is_markup()) out.add("Markup(");
      add_string_repr(out, v.as_text());
      if (v.is_markup()) out.add(')');
      return;
    case Kind::kList:
      out.add('[');
      add_items(out, budget, v.items());
      return out.add(']');
    case Kind::kTuple:
      out.add('(');
      add_items(out, budget, v.items());
      return out.add(v.items().size() == 1 ? ",)" : ")");
    case Kind::kDict: {
      out.add('{');
      bool first = true;
      for (const auto& [key, value] : v.as_dict().entries) {
        if (!first) out.add(", ");
        first = false;
        add_repr(out, budget, key);
        out.add(": ");
        add_repr(out, budget, value);
      }
      return out.add('}');
    }
    case Kind::kRange: {
      const Range& r = v.as_range();
      return out.add(r.step == 1 ? fmt::format("range({}, {})", r.start, r.stop)
                                 : fmt::format("range({}, {}, {})", r.start, r.stop, r.step));
    }
    case Kind::kDictView:
      return add_view_repr(out, budget, v);
    case Kind::kIterator:
      return out.add(fmt::format("<{} object>", v.as_iterator().type_name()));
    case Kind::kObject:
      return out.add(v.as_object().repr(budget));
  }
}

std::string_view strip(std::string_view text) {
  return utf8::strip_left(utf8::strip_right(text));
}

// Digits with single underscores between them, as Python allows. Empty when malformed.
std::string without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto alnum = [&](std::size_t k) {
      return k < text.size() && std::isalnum(static_cast<unsigned char>(text[k]));
    };
    if (text[i] != '_') {
      out.push_back(text[i]);
    } else if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) {
      return {};
    }
  }
  return out;
}

}  // namespace

void add_text(StringBuilder& out, Budget& budget, const Value& v) {
  if (v.is_string()) {
    out.add(v.as_text());
  } else if (!v.is_undefined()) {
    add_repr(out, budget, v);
  }
}

Text to_text(Budget& budget, const Value& v) {
  if (v.is_string()) return v.as_text();
  StringBuilder out(budget);
  add_text(out, budget, v);
  return out.take();
}

Text repr(Budget& budget, const Value& v) {
  StringBuilder out(budget);
  add_repr(out, budget, v);
  return out.take();
}

// The shortest digits that read back as d; positional between 1e-4 and 1e16, with an exponent outside.
std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* exponent_text = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_text, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  return out + digits.substr(0, static_cast<std::size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<std::size_t>(exponent) + 1);
}

Text escape_html(Budget& budget, const Text& text) {
  StringBuilder out(budget);
  std::string_view rest = text.bytes;
  while (!rest.empty()) {
    const std::string_view plain = rest.substr(0, rest.find_first_of("&<>'\""));
    out.add(text, plain);
    rest.remove_prefix(plain.size());
    if (rest.empty()) break;
    const std::string_view special = rest.substr(0, 1);
    switch (special[0]) {
      case '&':
        out.add_for(text, special, "&amp;");
        break;
      case '<':
        out.add_for(text, special, "&lt;");
        break;
      case '>':
        out.add_for(text, special, "&gt;");
        break;
      case '\'':
        out.add_for(text, special, "&#39;");
        break;
      default:
        out.add_for(text, special, "&#34;");
    }
    rest.remove_prefix(1);
  }
  return out.take();
}

Text change_letters(const Text& text, std::string (*change)(std::string_view)) {
  Text changed(change(text.bytes));
  if (!utf8::is_ascii(text.bytes)) return text.changed_to(std::move(changed.bytes));
  changed.foreign = text.foreign;  // byte for byte
  return changed;
}

std::optional<std::int64_t> parse_int(std::string_view text, int base) {
  std::string digits = without_underscores(strip(text));
  std::string_view rest = digits;
  bool negative = false;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) {
    negative = rest[0] == '-';
    rest.remove_prefix(1);
  }
  const auto prefix = [&](char letter) { return rest.size() > 2 && rest[0] == '0' && (rest[1] | 0x20) == letter; };
  for (const auto& [letter, radix] : {std::pair{'x', 16}, std::pair{'o', 8}, std::pair{'b', 2}}) {
    if (prefix(letter) && (base == radix || base == 0)) {
      rest.remove_prefix(2);
      base = radix;
      break;
    }
  }
  if (base == 0) {
    base = 10;
    if (rest.size() > 1 && rest[0] == '0' && rest.find_first_not_of('0') != std::string_view::npos) return std::nullopt;
  }
  if (base < 2 || base > 36 || rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  const std::string signed_text = (negative ? "-" : "") + std::string(rest);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(signed_text.data(), signed_text.data() + signed_text.size(), value, base);
  if (error == std::errc::result_out_of_range) fail("an integer does not fit 64 bits");
  if (error != std::errc() || end != signed_text.data() + signed_text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  std::string digits = without_underscores(strip(text));
  std::string_view rest = digits;
  if (rest.empty()) return std::nullopt;
  const bool negative = rest[0] == '-';
  if (rest[0] == '-' || rest[0] == '+') rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (end != rest.data() + rest.size()) return std::nullopt;
  if (rest.find('(') != std::string_view::npos) return std::nullopt;  // C's nan(tag)
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(rest).c_str(), nullptr);
  return negative ? -value : value;
}

}  // namespace quire::jinja
