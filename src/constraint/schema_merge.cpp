#include "constraint/schema_merge.h"

#include <algorithm>
#include <array>

namespace quire::schema {
namespace {

struct Keyword {
  std::string_view name, type;  // no type: of values of every type
};
constexpr Keyword kKeywords[] = {
    {"$ref", ""},
    {"$dynamicRef", ""},
    {"$recursiveRef", ""},
    {"type", ""},
    {"enum", ""},
    {"const", ""},
    {"allOf", ""},
    {"anyOf", ""},
    {"oneOf", ""},
    {"not", ""},
    {"if", ""},
    {"nullable", ""},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"patternProperties", "object"},
    {"propertyNames", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
    {"dependencies", "object"},
    {"dependentRequired", "object"},
    {"dependentSchemas", "object"},
    {"unevaluatedProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"additionalItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"uniqueItems", "array"},
    {"contains", "array"},
    {"minContains", "array"},
    {"maxContains", "array"},
    {"unevaluatedItems", "array"},
    {"pattern", "string"},
    {"format", "string"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
};

const Keyword* find(std::string_view name) {
  for (const Keyword& k : kKeywords)
    if (k.name == name) return &k;
  return nullptr;
}

bool among(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Json list_of(const Json& value) {
  return value.is_array() ? value : Json::array({value});
}

// Types that both allow; "integer" is a "number".
Json both_types(const Json& a, const Json& b, Budget& budget) {
  Json types = Json::array();
  const auto add = [&](const Json& type) {
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  };
  for (const Json& x : list_of(a))
    for (const Json& y : list_of(b)) {
      budget.spend(1);
      if (x == y) add(x);
      if ((x == "number" && y == "integer") || (x == "integer" && y == "number")) add("integer");
    }
  return types;
}

Json all_of(const Json& a, const Json& b) {
  if (a == true || (a.is_object() && a.empty()) || a == b) return b;
  if (b == true || (b.is_object() && b.empty())) return a;
  if (a == false || b == false) return false;
  return {{"allOf", Json::array({a, b})}};
}

// What a schema says of a property that it does not name; patterns are left to themselves.
Json of_others(const Json& schema) {
  const auto additional = schema.find("additionalProperties");
  return additional == schema.end() || schema.contains("patternProperties") ? Json(true) : *additional;
}

void merge_properties(const Json& a, const Json& b, Json& to, Budget& budget) {
  Json properties = Json::object();
  const Json none = Json::object();
  const Json& of_a = a.contains("properties") ? a["properties"] : none;
  const Json& of_b = b.contains("properties") ? b["properties"] : none;
  // A key is looked for among those of the other and of both together.
  const auto search = [&] { budget.spend((2 + std::ssize(of_a) + std::ssize(of_b) + std::ssize(properties)) / 8 + 1); };
  for (const auto& [key, value] : of_a.items()) {
    search();
    properties[key] = all_of(value, of_b.contains(key) ? of_b[key] : of_others(b));
  }
  for (const auto& [key, value] : of_b.items()) {
    search();
    if (!of_a.contains(key)) properties[key] = all_of(of_others(a), value);
  }
  if (!properties.empty()) to["properties"] = std::move(properties);
}

void merge_required(const Json& value, Json& into, Budget& budget) {
  for (const Json& key : value) {
    budget.spend_search(into);
    if (std::find(into.begin(), into.end(), key) == into.end()) into.push_back(key);
  }
}

}  // namespace

bool restricts(std::string_view keyword) {
  return find(keyword) != nullptr;
}

bool restricts_anything(const Json& schema) {
  if (!schema.is_object()) return schema == false;
  for (const auto& [key, value] : schema.items())
    if (restricts(key)) return true;
  return false;
}

std::string_view type_of_keyword(std::string_view keyword) {
  const Keyword* const k = find(keyword);
  return k == nullptr ? "" : k->type;
}

std::string_view type_of_value(const Json& value) {
  if (value.is_string()) return "string";
  if (value.is_boolean()) return "boolean";
  if (value.is_null()) return "null";
  if (value.is_array()) return "array";
  if (value.is_object()) return "object";
  if (value.is_number_integer()) return "integer";
  const double x = value.get<double>();
  return x == static_cast<double>(static_cast<int64_t>(std::clamp(x, -9e15, 9e15))) ? "integer" : "number";
}

bool type_takes(std::string_view type, std::string_view of_value) {
  return type == of_value || (type == "number" && of_value == "integer");
}

Json merge_plain(const Json& a, const Json& b, const std::function<void(std::string_view)>& note, Budget& budget) {
  if (a == false || b == false) return false;
  if (!a.is_object() || a.empty()) return b;
  if (!b.is_object() || b.empty()) return a;
  budget.spend_copy(a);
  budget.spend_copy(b);
  Json merged = a;
  for (const auto& [key, value] : b.items()) {
    if (!restricts(key) || key == "properties") continue;
    const auto at = merged.find(key);
    if (at == merged.end()) {
      merged[key] = value;
    } else if (*at == value) {
      continue;
    } else if (key == "type") {
      Json types = both_types(*at, value, budget);
      if (types.empty()) return false;
      *at = types.size() == 1 ? types.front() : types;
    } else if (key == "required") {
      merge_required(value, *at, budget);
    } else if (among(key, {"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum", "minContains"})) {
      if (value > *at) *at = value;
    } else if (among(key, {"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum", "maxContains"})) {
      if (value < *at) *at = value;
    } else if (among(key,
                     {"additionalProperties", "items", "unevaluatedProperties", "unevaluatedItems", "propertyNames"})) {
      *at = all_of(*at, value);
    } else if (key == "enum" || key == "const") {
      Json values = Json::array();
      const Json mine = key == "enum" ? *at : Json::array({*at}), other = key == "enum" ? value : Json::array({value});
      for (const Json& v : mine) {
        budget.spend_search(other);
        if (std::find(other.begin(), other.end(), v) != other.end()) values.push_back(v);
      }
      if (values.empty()) return false;
      if (key == "enum") *at = std::move(values);
    } else if (key == "patternProperties" || key == "dependentRequired" || key == "dependencies") {
      for (const auto& [name, schema] : value.items()) {
        budget.spend_search(*at);
        if (at->contains(name) && (*at)[name] != schema) note(key);
        (*at)[name] = schema;
      }
    } else if (key == "uniqueItems") {
      *at = true;
    } else {
      note(key);
    }
  }
  merged.erase("properties");
  merge_properties(a, b, merged, budget);
  // A property that one of them does not allow must not come in by the other's pattern.
  if (a.contains("patternProperties") != b.contains("patternProperties") && merged.contains("additionalProperties") &&
      (a.contains("patternProperties") ? b : a).contains("additionalProperties"))
    note("patternProperties");
  return merged;
}

}  // namespace quire::schema
