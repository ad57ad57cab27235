// Filters that make text.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/json.h"
#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

template <std::string (*Change)(std::string_view)>
Value change_case(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  return Value::string(in.budget(), change_letters(to_text(in.budget(), v), Change), v.is_markup());
}

// A capital after white space, a hyphen or an opening bracket; everything else small.
std::string title_words(std::string_view text) {
  std::string out;
  std::string_view rest = text;
  while (!rest.empty()) {
    std::size_t end = 0, begin = 0;
    for (; begin < rest.size(); ++begin) {  // the separators are ASCII or white space
      const utf8::Char c = utf8::decode(rest, begin);
      if (!utf8::is_space(c.code) &&
          (c.code >= 0x80 || std::string_view("-({[<").find(static_cast<char>(c.code)) == std::string_view::npos))
        break;
      begin += c.size - 1;
    }
    out += rest.substr(0, begin);
    for (end = begin; end < rest.size();) {
      const utf8::Char c = utf8::decode(rest, end);
      if (utf8::is_space(c.code) ||
          (c.code < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code)) != std::string_view::npos))
        break;
      end += c.size;
    }
    if (end > begin) {
      const std::size_t first = utf8::decode(rest, begin).size;
      out += utf8::upper(rest.substr(begin, first));
      out += utf8::lower(rest.substr(begin + first, end - begin - first));
    }
    rest.remove_prefix(end);
  }
  return out;
}

Value filter_trim(Interpreter& in, const Value& v, Parameters& p) {
  const auto chars = p.text("chars");
  p.done();
  const Text text = to_text(in.budget(), v);
  const std::string_view kept = chars ? utf8::strip_right(utf8::strip_left(text.bytes, chars->bytes), chars->bytes)
                                      : utf8::strip_right(utf8::strip_left(text.bytes));
  return Value::string(in.budget(), text.piece(kept), v.is_markup());
}

Value filter_string(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  return v.is_string() ? v : Value::string(in.budget(), to_text(in.budget(), v));
}

Value filter_safe(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  return Value::string(in.budget(), to_text(in.budget(), v), true);
}

Value filter_escape(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  if (v.is_markup()) return v;
  return Value::string(in.budget(), escape_html(in.budget(), to_text(in.budget(), v)), true);
}

Value filter_forceescape(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  return Value::string(in.budget(), escape_html(in.budget(), to_text(in.budget(), v)), true);
}

Value filter_replace(Interpreter& in, const Value& v, Parameters& p) {
  const Value from = p.required("old"), to = p.required("new"), count = p.optional("count", Value::none());
  p.done();
  Arguments arguments{{Value::string(to_text(in.budget(), from)), Value::string(to_text(in.budget(), to))}, {}};
  if (!count.is_none()) arguments.positional.push_back(count);
  const Value text = Value::string(to_text(in.budget(), v));
  return in.call(in.item_without_lookup(text, "replace"), arguments);
}

Value filter_indent(Interpreter& in, const Value& v, Parameters& p) {
  const Value width = p.optional("width", Value::integer(4));
  const bool first = p.flag("first", false), blank = p.flag("blank", false);
  p.done();
  if (!v.is_string()) fail("indent needs a string, not {}", type_name(v));
  if (!width.is_string() && !width.is_integral()) fail("indent: width must be an integer or a string");
  Text indention;
  if (width.is_string()) {
    indention = width.as_text();
  } else if (width.as_int() > 0) {
    in.budget().check_string(static_cast<std::uint64_t>(width.as_int()));
    indention.bytes.assign(static_cast<std::size_t>(width.as_int()), ' ');
  }
  StringBuilder out(in.budget());
  Arguments none;
  Text ended = v.as_text();
  ended.bytes += '\n';
  const Value text = Value::string(in.budget(), std::move(ended));
  const Value lines = in.call(in.item_without_lookup(text, "splitlines"), none);
  for (std::size_t i = 0; i < lines.items().size(); ++i) {
    const Text& line = lines.items()[i].as_text();
    if (i > 0) out.add('\n');
    if (i == 0 ? first : blank || !line.bytes.empty()) out.add(indention);
    out.add(line);
  }
  return Value::string(in.budget(), out.take(), v.is_markup());
}

Value filter_truncate(Interpreter& in, const Value& v, Parameters& p) {
  const std::int64_t size = p.integer("length", 255);
  const bool kill_words = p.flag("killwords", false);
  const Text end = p.text("end").value_or(Text("..."));
  const Value leeway = p.optional("leeway", Value::none());
  p.done();
  const auto end_size = static_cast<std::int64_t>(utf8::length(end.bytes));
  if (size < end_size) fail("truncate: expected length >= {}, got {}", end_size, size);
  const std::int64_t slack = leeway.is_integral() ? leeway.as_int() : 5;
  if (slack < 0) fail("truncate: leeway must not be negative");
  if (length(v) - slack <= size) return v;
  if (!v.is_string()) fail("truncate needs a string, not {}", type_name(v));
  std::string_view kept = v.as_string();
  kept = kept.substr(0, utf8::offset(kept, static_cast<std::size_t>(size - end_size)));
  if (const auto space = kept.rfind(' '); !kill_words && space != std::string::npos) kept = kept.substr(0, space);
  StringBuilder out(in.budget());
  out.add(v.as_text(), kept);
  out.add(end);
  return Value::string(in.budget(), out.take());
}

Value filter_center(Interpreter& in, const Value& v, Parameters& p) {
  Arguments arguments{{p.optional("width", Value::integer(80))}, {}};
  p.done();
  const Value text = Value::string(to_text(in.budget(), v));
  return in.call(in.item_without_lookup(text, "center"), arguments);
}

void add_quoted(StringBuilder& out, const Text& text, bool query) {
  for (std::size_t i = 0; i < text.bytes.size(); ++i) {
    const std::string_view piece = std::string_view(text.bytes).substr(i, 1);
    const char c = piece[0];
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 &&
        (std::isalnum(byte) || std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query))) {
      out.add(text, piece);
    } else if (c == ' ' && query) {
      out.add_for(text, piece, "+");
    } else {
      out.add_for(text, piece, fmt::format("%{:02X}", byte));
    }
  }
}

Value filter_urlencode(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  StringBuilder out(in.budget());
  if (v.is_string() || !is_iterable(v)) {
    add_quoted(out, to_text(in.budget(), v), false);
    return Value::string(in.budget(), out.take());
  }
  std::vector<Value> pairs;
  if (v.is_dict()) {
    for (const auto& [key, value] : v.as_dict().entries) pairs.push_back(Value::tuple(in.budget(), {key, value}));
  } else {
    pairs = to_vector(in.budget(), v);
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto pair = to_vector(in.budget(), pairs[i]);
    if (pair.size() != 2) fail("urlencode needs pairs of name and value");
    if (i > 0) out.add('&');
    add_quoted(out, to_text(in.budget(), pair[0]), true);
    out.add('=');
    add_quoted(out, to_text(in.budget(), pair[1]), true);
  }
  return Value::string(in.budget(), out.take());
}

Value filter_wordcount(Interpreter& in, const Value& v, Parameters& p) {
  p.done();
  const std::string text = to_text(in.budget(), v).bytes;
  std::int64_t words = 0;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Char c = utf8::decode(text, at);
    const bool word = utf8::is_word(c.code);
    words += word && !in_word ? 1 : 0;
    in_word = word;
    at += c.size;
  }
  return Value::integer(words);
}

Value filter_format(Interpreter& in, const Value& v, Parameters& p) {
  Arguments arguments = p.rest();
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("format takes either positional or keyword arguments, not both");
  }
  Value values;
  if (arguments.named.empty()) {
    values = Value::tuple(in.budget(), std::move(arguments.positional));
  } else {
    const auto dict = std::make_shared<Dict>();
    for (auto& [name, value] : arguments.named)
      dict->set(in.budget(), Value::string(Text::from_outside(name)), std::move(value));
    values = Value::dict(in.budget(), dict);
  }
  return Value::string(in.budget(), percent_format(in.budget(), to_text(in.budget(), v), values));
}

Value filter_tojson(Interpreter& in, const Value& v, Parameters& p) {
  JsonStyle style;
  bool own = true;  // the style is the template's
  style.ascii = p.flag("ensure_ascii", false);
  const Value indent = p.optional("indent", Value::none());
  const Value separators = p.optional("separators", Value::none());
  style.sort_keys = p.flag("sort_keys", false);
  p.done();
  if (indent.is_string()) {
    style.indent = indent.as_string();
    own = indent.as_text().foreign.empty();
  } else if (indent.is_integral()) {
    const auto width = std::max<std::int64_t>(indent.as_int(), 0);
    if (width > 1000) fail("tojson: indent must be at most 1000");
    style.indent = std::string(static_cast<std::size_t>(width), ' ');
  } else if (!indent.is_none()) {
    fail("tojson: indent must be an integer, a string or none, not {}", type_name(indent));
  }
  if (style.indent) style.item_separator = ",";
  if (!separators.is_none()) {
    const auto pair = to_vector(in.budget(), separators);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string())
      fail("tojson: separators must be two strings");
    style.item_separator = pair[0].as_string();
    style.key_separator = pair[1].as_string();
    own = own && pair[0].as_text().foreign.empty() && pair[1].as_text().foreign.empty();
  }
  Text text = to_json(in.budget(), v, style);
  return Value::string(in.budget(), own ? std::move(text) : Text::from_outside(std::move(text.bytes)));
}

constexpr Named<FilterFn> kTextFilters[] = {
    {"capitalize", change_case<utf8::capitalize>},
    {"center", filter_center},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"lower", change_case<utf8::lower>},
    {"replace", filter_replace},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", change_case<title_words>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", change_case<utf8::upper>},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
};

}  // namespace

std::span<const Named<FilterFn>> text_filters() {
  return kTextFilters;
}

}  // namespace quire::jinja
