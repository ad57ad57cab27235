#include "constraint/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

#include "constraint/schema_refs.h"

namespace quire::schema {
namespace {

constexpr size_t kMostPath = 300;         // characters that a message shows
constexpr size_t kMostReferences = 1000;  // to places that hold no schema by their name

enum class Kind {
  kCount,  // a whole number from 0 on
  kNumber,
  kLimit,  // a number, or a flag in older drafts
  kFlag,
  kText,
  kValues,  // any array
  kNames,   // an array of strings, or a flag in the oldest draft
  kType,    // a string, or an array of them
  kSchema,
  kSchemas,  // an array of schemas
  kSchemasOrOne,
  kSchemasByName,  // an object of schemas
  kNamesByName,    // an object of arrays of strings
  kNeedsByName,    // an object of either
};
struct Keyword {
  std::string_view name;
  Kind kind;
};
constexpr Keyword kKeywords[] = {
    {"minLength", Kind::kCount},
    {"maxLength", Kind::kCount},
    {"minItems", Kind::kCount},
    {"maxItems", Kind::kCount},
    {"minContains", Kind::kCount},
    {"maxContains", Kind::kCount},
    {"minProperties", Kind::kCount},
    {"maxProperties", Kind::kCount},
    {"minimum", Kind::kNumber},
    {"maximum", Kind::kNumber},
    {"multipleOf", Kind::kNumber},
    {"exclusiveMinimum", Kind::kLimit},
    {"exclusiveMaximum", Kind::kLimit},
    {"uniqueItems", Kind::kFlag},
    {"nullable", Kind::kFlag},
    {"pattern", Kind::kText},
    {"format", Kind::kText},
    {"$ref", Kind::kText},
    {"enum", Kind::kValues},
    {"required", Kind::kNames},
    {"type", Kind::kType},
    {"additionalProperties", Kind::kSchema},
    {"unevaluatedProperties", Kind::kSchema},
    {"unevaluatedItems", Kind::kSchema},
    {"additionalItems", Kind::kSchema},
    {"propertyNames", Kind::kSchema},
    {"contains", Kind::kSchema},
    {"not", Kind::kSchema},
    {"if", Kind::kSchema},
    {"then", Kind::kSchema},
    {"else", Kind::kSchema},
    {"items", Kind::kSchemasOrOne},
    {"prefixItems", Kind::kSchemas},
    {"allOf", Kind::kSchemas},
    {"anyOf", Kind::kSchemas},
    {"oneOf", Kind::kSchemas},
    {"properties", Kind::kSchemasByName},
    {"patternProperties", Kind::kSchemasByName},
    {"dependentSchemas", Kind::kSchemasByName},
    {"$defs", Kind::kSchemasByName},
    {"definitions", Kind::kSchemasByName},
    {"dependentRequired", Kind::kNamesByName},
    {"dependencies", Kind::kNeedsByName},
};

bool is_count(const Json& value) {
  return value.is_number() && value >= 0 && type_of_value(value) == "integer";
}
bool are_texts(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
}
bool is_schema(const Json& value) {
  return value.is_object() || value.is_boolean();
}

class Check {
 public:
  Check(const Json& root, Budget& budget) : root_(root), budget_(budget) { look_at({&root}); }

  void run() {
    while (next_ < places_.size()) {
      const size_t at = next_++;
      const Json& schema = *places_[at].schema;
      if (schema.is_object())
        for (const Keyword& k : kKeywords)
          if (const auto value = schema.find(k.name); value != schema.end()) check(at, k, *value);
    }
  }

 private:
  static constexpr size_t kNowhere = SIZE_MAX;
  // A schema, and the way to it from the one around it: "properties" and then "a", or an index.
  struct Place {
    const Json* schema;
    size_t around = kNowhere;
    std::string_view keyword = "#";
    std::string_view name = {};
    size_t index = kNowhere;
  };

  void look_at(Place place) {
    if (seen_.insert(place.schema).second) places_.push_back(place);
  }

  std::string path(size_t at) const {
    std::vector<std::string> steps;
    size_t size = 0;
    for (; at != kNowhere && size < kMostPath; at = places_[at].around) {
      const Place& p = places_[at];
      std::string step(p.keyword);
      if (p.index != kNowhere) step += fmt::format("/{}", p.index);
      if (p.name.data() != nullptr) step += "/" + pointer_step(p.name);
      size += step.size() + 1;
      steps.push_back(std::move(step));
    }
    if (at != kNowhere) steps.emplace_back("#/...");
    std::reverse(steps.begin(), steps.end());
    return fmt::format("{}", fmt::join(steps, "/"));
  }

  [[noreturn]] void wrong(size_t at, const Keyword& k, std::string_view expected, const Json& found) const {
    std::string text = found.is_structured() ? fmt::format("an {}", found.type_name())
                                             : found.dump(-1, ' ', false, Json::error_handler_t::replace);
    constexpr size_t kMostText = 40;
    if (text.size() > kMostText) text = text.substr(0, kMostText) + "...";
    throw Refused{fmt::format("{}: '{}' must be {}, not {}", path(at), k.name, expected, text)};
  }

  void check(size_t at, const Keyword& k, const Json& value) {
    const auto expect = [&](bool ok, std::string_view expected) {
      if (!ok) wrong(at, k, expected, value);
    };
    switch (k.kind) {
      case Kind::kCount:
        return expect(is_count(value), "a whole number that is not negative");
      case Kind::kNumber:
        return expect(value.is_number() && (k.name != "multipleOf" || value > 0),
                      k.name == "multipleOf" ? "a number above 0" : "a number");
      case Kind::kLimit:
        return expect(value.is_number() || value.is_boolean(), "a number");
      case Kind::kFlag:
        return expect(value.is_boolean(), "true or false");
      case Kind::kText:
        expect(value.is_string(), "a string");
        return k.name == "$ref" ? follow(at, value.get_ref<const std::string&>()) : void();
      case Kind::kValues:
        return expect(value.is_array(), "an array");
      case Kind::kNames:
        return expect(are_texts(value) || value.is_boolean(), "an array of strings");
      case Kind::kType:
        return expect(value.is_string() || (are_texts(value) && !value.empty()),
                      "the name of a type, or an array of them");
      default:
        return check_schemas(at, k, value);
    }
  }

  void check_schemas(size_t at, const Keyword& k, const Json& value) {
    if (k.kind == Kind::kSchema || (k.kind == Kind::kSchemasOrOne && !value.is_array())) {
      if (!is_schema(value)) wrong(at, k, "a schema", value);
      look_at({&value, at, k.name});
      return;
    }
    if (k.kind == Kind::kSchemas || k.kind == Kind::kSchemasOrOne) {
      const bool may_be_empty = k.name != "anyOf" && k.name != "oneOf";
      if (!value.is_array() || (value.empty() && !may_be_empty))
        wrong(at, k, may_be_empty ? "an array of schemas" : "an array that is not empty, of schemas", value);
      for (size_t i = 0; i < value.size(); ++i) {
        if (!is_schema(value[i])) wrong(at, k, fmt::format("an array of schemas, at {} too", i), value[i]);
        look_at({&value[i], at, k.name, {}, i});
      }
      return;
    }
    if (!value.is_object()) wrong(at, k, "an object", value);
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (is_schema(*it) && k.kind != Kind::kNamesByName)
        look_at({&*it, at, k.name, it.key()});
      else if (k.kind == Kind::kSchemasByName)
        wrong(at, k, fmt::format("an object of schemas, for {} too", pointer_step(it.key())), *it);
      else if (!are_texts(*it))
        wrong(at, k, fmt::format("an object of arrays of strings, for {} too", pointer_step(it.key())), *it);
    }
  }

  // What lies in "$defs" is looked at there. What a reference of another kind leads to is a schema as well.
  void follow(size_t at, const std::string& uri) {
    for (const std::string_view usual : {"#/$defs/", "#/definitions/"})
      if (uri.starts_with(usual) && uri.find('/', usual.size()) == std::string::npos) return;
    if (!followed_.insert(uri).second) return;
    if (followed_.size() > kMostReferences)
      throw Refused{fmt::format("it has more than {} '$ref' to places outside of '$defs'", kMostReferences)};
    const Json* target = nullptr;
    try {
      target = &resolve(root_, uri, budget_);
    } catch (const Refused&) {
      return;  // the gate refuses it where it is used
    }
    look_at({target, at, "$ref"});
  }

  const Json& root_;
  Budget& budget_;
  std::vector<Place> places_;
  std::unordered_set<const Json*> seen_;
  size_t next_ = 0;
  std::unordered_set<std::string> followed_;
};

}  // namespace

void check_keywords(const Json& root, Budget& budget) {
  Check(root, budget).run();
}

}  // namespace quire::schema
