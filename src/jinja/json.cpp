#include "jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style), out_(budget) {}

  void write(const Value& v) {
    budget_.step();
    switch (v.kind()) {
      case Kind::kNone:
        return out_.add("null");
      case Kind::kBool:
        return out_.add(v.as_bool() ? "true" : "false");
      case Kind::kInt:
        return out_.add(fmt::format("{}", v.as_int()));
      case Kind::kFloat:
        return out_.add(number(v.as_float()));
      case Kind::kString:
        return write_string(v.as_text());
      case Kind::kList:
      case Kind::kTuple:
        return write_list(v.items());
      case Kind::kDict:
        return write_dict(v.as_dict());
      case Kind::kUndefined:
        fail("tojson: {}", v.why_undefined());
      default:
        fail("tojson: an object of type {} cannot be written as JSON", type_name(v));
    }
  }
  Text take() { return out_.take(); }

 private:
  static std::string number(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return float_repr(d);
  }

  void new_line() {
    if (!style_.indent) return;
    out_.add('\n');
    out_.repeat(*style_.indent, static_cast<std::uint64_t>(level_));
  }

  void write_list(const std::vector<Value>& items) {
    if (items.empty()) return out_.add("[]");
    out_.add('[');
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.add(style_.item_separator);
      new_line();
      write(items[i]);
    }
    --level_;
    new_line();
    out_.add(']');
  }

  Text key_text(const Value& key) const {
    switch (key.kind()) {
      case Kind::kString:
        return key.as_text();
      case Kind::kNone:
        return Text("null");
      case Kind::kBool:
        return Text(key.as_bool() ? "true" : "false");
      case Kind::kInt:
        return Text(fmt::format("{}", key.as_int()));
      case Kind::kFloat:
        return Text(number(key.as_float()));
      default:
        fail("tojson: a key must be a string, number, boolean or none, not {}", type_name(key));
    }
  }

  void write_dict(const Dict& dict) {
    if (dict.entries.empty()) return out_.add("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    budget_.allocate(dict.entries.size() * sizeof(void*));
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto* a, const auto* b) { return less(budget_, a->first, b->first); });
    }
    out_.add('{');
    ++level_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.add(style_.item_separator);
      new_line();
      write_string(key_text(entries[i]->first));
      out_.add(style_.key_separator);
      write(entries[i]->second);
    }
    --level_;
    new_line();
    out_.add('}');
  }

  static std::string escape(char32_t code) {
    if (code < 0x10000) return fmt::format("\\u{:04x}", static_cast<unsigned>(code));
    code -= 0x10000;
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800u + static_cast<unsigned>(code >> 10),
                       0xDC00u + static_cast<unsigned>(code & 0x3FF));
  }

  void write_string(const Text& string) {
    const std::string_view text = string.bytes;
    static constexpr std::string_view kNamed = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    out_.add('"');
    for (std::size_t at = 0; at < text.size();) {
      const utf8::Char c = utf8::decode(text, at);
      const auto named = c.code < 0x80 ? kNamed.find(static_cast<char>(c.code)) : std::string_view::npos;
      const std::string_view piece = text.substr(at, c.size);
      if (named != std::string_view::npos) {
        out_.add_for(string, piece, std::string{'\\', kLetters[named]});
      } else if (c.code < 0x20 || (style_.ascii && c.code > 0x7E)) {
        out_.add_for(string, piece, escape(c.code));
      } else {
        out_.add(string, piece);
      }
      at += c.size;
    }
    out_.add('"');
  }

  Budget& budget_;
  const JsonStyle& style_;
  StringBuilder out_;
  int level_ = 0;
};

}  // namespace

Text to_json(Budget& budget, const Value& v, const JsonStyle& style) {
  JsonWriter writer(budget, style);
  writer.write(v);
  return writer.take();
}

Value from_json(Budget& budget, const nlohmann::ordered_json& json, Origin origin, int depth) {
  budget.step();
  budget.check_depth(depth);
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<std::int64_t>());
    case Type::number_unsigned: {
      const auto n = json.get<std::uint64_t>();
      return n > INT64_MAX ? Value::number(static_cast<double>(n)) : Value::integer(static_cast<std::int64_t>(n));
    }
    case Type::number_float:
      return Value::number(json.get<double>());
    case Type::string:
      return Value::string(budget, Text::of(origin, json.get_ref<const std::string&>()));
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(budget, item, origin, depth + 1));
      return Value::list(budget, std::move(items));
    }
    case Type::object: {
      const auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items())
        dict->set(budget, Value::string(budget, Text::of(origin, key)), from_json(budget, value, origin, depth + 1));
      return Value::dict(budget, dict);
    }
    default:
      return Value::none();
  }
}

}  // namespace quire::jinja
