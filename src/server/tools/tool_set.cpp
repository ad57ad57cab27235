#include "server/tools/tool_set.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire::server {
namespace {

constexpr int kMaxSchemaDepth = 8;       // of references and alternatives within each other
constexpr size_t kMaxSchemaSteps = 256;  // schemas looked at for one argument

void allow(ValueTypes& t, std::string_view name) {
  if (name == "string") t.string = true;
  if (name == "integer") t.integer = true;
  if (name == "number") t.number = true;
  if (name == "boolean") t.boolean = true;
  if (name == "null") t.null = true;
  if (name == "object") t.object = true;
  if (name == "array") t.array = true;
}

void allow_kind_of(ValueTypes& t, const Json& value) {
  t.string = t.string || value.is_string();
  t.integer = t.integer || value.is_number_integer();
  t.number = t.number || value.is_number_float();
  t.boolean = t.boolean || value.is_boolean();
  t.null = t.null || value.is_null();
  t.object = t.object || value.is_object();
  t.array = t.array || value.is_array();
}

class Collector {
 public:
  explicit Collector(const Json& root) : root_(root) {}

  void collect(const Json& schema, int depth) {
    if (!schema.is_object() || depth > kMaxSchemaDepth || ++steps_ > kMaxSchemaSteps) return;
    read_type(schema);
    if (const auto at = schema.find("enum"); at != schema.end() && at->is_array())
      for (const Json& value : *at) allow_kind_of(types, value);
    if (const auto at = schema.find("const"); at != schema.end()) allow_kind_of(types, *at);
    for (const char* several : {"anyOf", "oneOf", "allOf"})
      if (const auto at = schema.find(several); at != schema.end() && at->is_array())
        for (const Json& s : *at) collect(s, depth + 1);
    if (const Json* target = referred(schema)) collect(*target, depth + 1);
  }

  ValueTypes types;

 private:
  void read_type(const Json& schema) {
    const auto type = schema.find("type");
    if (type == schema.end()) return;
    if (type->is_string()) return allow(types, type->get_ref<const std::string&>());
    if (!type->is_array()) return;
    for (const Json& t : *type)
      if (t.is_string()) allow(types, t.get_ref<const std::string&>());
  }

  // "#/$defs/NAME" and the like.
  const Json* referred(const Json& schema) const {
    const auto at = schema.find("$ref");
    if (at == schema.end() || !at->is_string()) return nullptr;
    const auto& text = at->get_ref<const std::string&>();
    for (const std::string_view group : {"$defs", "definitions"}) {
      const std::string prefix = fmt::format("#/{}/", group);
      if (!text.starts_with(prefix)) continue;
      const auto defs = root_.find(std::string(group));
      if (defs == root_.end() || !defs->is_object()) return nullptr;
      const auto found = defs->find(text.substr(prefix.size()));
      return found == defs->end() ? nullptr : &*found;
    }
    return nullptr;
  }

  const Json& root_;
  size_t steps_ = 0;
};

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) append_escaped(out, c);
  return out + '"';
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kWhite = " \t\r\n";
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) - begin + 1);
}

// JSON's own word for a value that Python prints otherwise.
std::string_view json_word(std::string_view text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  return text;
}

bool fits(const Json& value, const ValueTypes& t) {
  if (value.is_null()) return t.null || !t.string;  // nothing else is meant by it, whatever the schema allows
  if (value.is_boolean()) return t.boolean;
  if (value.is_number_integer()) return t.integer || t.number;
  if (value.is_number()) return t.number || t.integer;  // "3.0" where an integer is asked for
  if (value.is_object()) return t.object;
  if (value.is_array()) return t.array;
  return false;  // a quoted string is a string that has quotes
}

}  // namespace

const Tool* ToolSet::find(std::string_view name) const {
  const auto at = std::find_if(tools_.begin(), tools_.end(), [&](const Tool& t) { return t.name == name; });
  return at == tools_.end() ? nullptr : &*at;
}

ValueTypes types_of(const Tool* tool, std::string_view argument) {
  if (tool == nullptr || !tool->parameters.is_object()) return {};
  const auto properties = tool->parameters.find("properties");
  if (properties == tool->parameters.end() || !properties->is_object()) return {};
  const auto at = properties->find(std::string(argument));
  if (at == properties->end()) return {};
  Collector c(tool->parameters);
  c.collect(*at, 0);
  return c.types;
}

std::string typed_value(std::string_view text, const ValueTypes& types) {
  ValueTypes allowed = types;
  // Nothing else looks so much like what it is.
  if (!types.any()) allowed.string = allowed.object = allowed.array = true;
  const std::string_view word = json_word(trimmed(text));
  const JsonLimits limits;
  // A NUL would end the text for the parser, and not for whoever reads what it was taken for.
  if (word.empty() || word.front() == '"' || word.find('\0') != std::string_view::npos) return quoted(text);
  const ApiResult<JsonDocument> value = parse_json(word, limits);
  return value.ok() && fits(**value, allowed) ? std::string(word) : quoted(text);
}

void append_escaped(std::string& to, char c) {
  switch (c) {
    case '"':
      to += "\\\"";
      return;
    case '\\':
      to += "\\\\";
      return;
    case '\n':
      to += "\\n";
      return;
    case '\r':
      to += "\\r";
      return;
    case '\t':
      to += "\\t";
      return;
    default:
      if (static_cast<unsigned char>(c) < 0x20)
        to += fmt::format("\\u{:04x}", static_cast<int>(c));
      else
        to += c;
  }
}

}  // namespace quire::server
