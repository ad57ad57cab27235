#include "constraint/schema_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "constraint/choices.h"
#include "constraint/schema_check.h"
#include "constraint/schema_closed.h"
#include "constraint/schema_dependencies.h"
#include "constraint/schema_finite.h"
#include "constraint/schema_merge.h"
#include "constraint/schema_refs.h"
#include "constraint/schema_scalars.h"
#include "constraint/string_pattern.h"

namespace quire {
namespace {

using schema::Json;
using schema::pointer_step;
using schema::Refused;

constexpr size_t kMostAlternatives = 64;  // of one place, where anyOf and allOf meet
constexpr size_t kFewValues = 64;         // of "enum"
constexpr int kMostSchemaDepth = 96;
constexpr int kMostNodes = 100'000;  // schemas that are looked at, references followed

bool is_ref(const Json& s) {
  return s.is_object() && s.size() == 1 && s.contains("$ref");
}

class Gate {
 public:
  Gate(const Json& root, const GateOptions& options) : root_(root), options_(options), budget_(options.stop) {}

  GatedSchema run() {
    schema::check_keywords(root_, budget_);
    Json out = normalise(root_, "#", 0);
    if (out == false) throw Refused{"nothing can satisfy it"};
    if (out == true) out = Json::object();
    Json definitions = Json::object();
    // Definitions may name further ones.
    while (!pending_.empty()) {
      const auto [uri, name] = pending_.back();
      pending_.pop_back();
      Json definition = normalise(resolve(uri), uri, 0);
      budget_.spend_search(definitions);
      definitions[name] = definition == true ? Json::object() : std::move(definition);
    }
    if (!definitions.empty()) out["$defs"] = std::move(definitions);
    if (!schema::leave_out_endless(out, [&](std::string_view what) { note("#", what); }))
      throw Refused{"nothing can satisfy it: what it requires excludes itself, or goes on without end"};
    done_.text = out.dump(-1, ' ', false, Json::error_handler_t::replace);
    return std::move(done_);
  }

 private:
  using Alternatives = std::vector<Json>;

  void note(const std::string& path, std::string_view what) {
    std::string text = fmt::format("{}: {} is not enforced", path, what);
    auto& all = done_.unenforced;
    if (all.size() < GatedSchema::kMostNotes && std::find(all.begin(), all.end(), text) == all.end())
      all.push_back(std::move(text));
  }

  void count(int depth) {
    if (depth > kMostSchemaDepth) throw Refused{"it is nested too deeply"};
    if (++nodes_ > kMostNodes) throw Refused{"it is too large where its keywords are combined"};
  }

  const Json& resolve(const std::string& uri) { return schema::resolve(root_, uri, budget_); }

  std::string uri_of(const Json& ref) const { return ref["$ref"].get<std::string>(); }

  // The definition's name in what is compiled.
  Json reference(const std::string& uri) {
    const auto [at, added] = names_.try_emplace(uri, fmt::format("r{}", names_.size()));
    if (added) {
      resolve(uri);
      pending_.emplace_back(uri, at->second);
    }
    return {{"$ref", "#/$defs/" + at->second}};
  }

  // Schemas without combinators one of which a value must satisfy. A lone reference stays one.
  Alternatives expand(const Json& s, const std::string& path, int depth, bool* exclusive = nullptr) {
    count(depth);
    if (s == true) return {Json::object()};
    if (s == false) return {};
    if (!s.is_object()) throw Refused{fmt::format("{} is no schema: it is {}", path, s.type_name())};
    if (depth > 0 && s.contains("$id") && (s.contains("$ref") || s.contains("$defs"))) note(path, "'$id'");
    budget_.spend_copy(s);
    Json plain = Json::object();
    for (const auto& [key, value] : s.items())
      if (schema::restricts(key) && key != "allOf" && key != "anyOf" && key != "oneOf" && key != "$ref")
        plain[key] = value;
    if (!options_.additional_properties) schema::declare_conditional(s, plain);
    Alternatives all = {branches_of_condition(plain, path)};
    if (s.contains("$ref")) {
      all = cross(all, {{{"$ref", uri_of(s)}}}, path, depth, "$ref");
    }
    if (s.contains("allOf")) {
      for (size_t i = 0; i < s["allOf"].size(); ++i)
        all = cross(all, expand(s["allOf"][i], fmt::format("{}/allOf/{}", path, i), depth + 1), path, depth, "allOf");
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (!s.contains(keyword)) continue;
      Alternatives options;
      for (size_t i = 0; i < s[keyword].size(); ++i) {
        const Alternatives option = expand(s[keyword][i], fmt::format("{}/{}/{}", path, keyword, i), depth + 1);
        options.insert(options.end(), option.begin(), option.end());
      }
      if (std::string_view(keyword) == "oneOf") {
        // Which of several holds alone is the library's to find out, where the options stand by themselves.
        if (exclusive != nullptr && !s.contains("anyOf") && options.size() == s[keyword].size())
          *exclusive = options.size() > 1;
        else if (options.size() > 1)
          note(path, "that only one of 'oneOf' holds");
      }
      all = cross(all, options, path, depth, keyword);
    }
    return all;
  }

  // Conditions are left out.
  Json branches_of_condition(Json plain, const std::string& path) {
    if (plain.contains("if")) {
      note(path, "'if'");
      plain.erase("if");
    }
    return plain;
  }

  Alternatives cross(const Alternatives& a, const Alternatives& b, const std::string& path, int depth,
                     std::string_view keyword) {
    if (a.size() * b.size() > kMostAlternatives && a.size() > 1 && b.size() > 1) {
      note(path, fmt::format("'{}' (too many combinations)", keyword));
      return a;
    }
    Alternatives all;
    for (const Json& x : a)
      for (const Json& y : b) {
        if (!x.empty() || keyword == "allOf") note_unevaluated(y, path);
        budget_.spend_copy(x.empty() ? y : x);
        if (x.empty() || x == y) {
          all.push_back(y);
        } else if (y.empty()) {
          all.push_back(x);
        } else {
          for (const Json& p : followed(x, path, depth))
            for (const Json& q : followed(y, path, depth)) {
              note_scope(p, q, path);
              if (is_ref(p) || is_ref(q)) {  // it leads to itself
                if (p != q) note(path, "what stands beside a '$ref' to itself");
                all.push_back(is_ref(p) ? p : q);
                continue;
              }
              Json merged = schema::merge_plain(
                  p, q, [&](std::string_view key) { note(path, fmt::format("'{}' of one of several", key)); }, budget_);
              if (merged != false) all.push_back(std::move(merged));
            }
        }
        if (all.size() > kMostAlternatives * 4) throw Refused{path + " has too many alternatives"};
      }
    return all;
  }

  // Keywords that speak of what others beside them have not: of those of their own schema alone.
  void note_unevaluated(const Json& branch, const std::string& path) {
    for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems"})
      if (branch.contains(keyword) && branch[keyword] != true)
        note(path, fmt::format("'{}' of one of several", keyword));
  }
  void note_scope(const Json& base, const Json& branch, const std::string& path) {
    note_unevaluated(branch, path);
    for (const auto& [items, prefix] : {std::pair(&base, &branch), std::pair(&branch, &base)})
      if (items->contains("items") && !prefix->contains("items") && prefix->contains("prefixItems"))
        note(path, "'items' beside 'prefixItems' of another");
  }

  // What a reference leads to, as long as it does not lead to itself.
  Alternatives followed(const Json& s, const std::string& path, int depth) {
    if (!is_ref(s)) return {s};
    const std::string uri = uri_of(s);
    if (std::find(following_.begin(), following_.end(), uri) != following_.end()) return {s};
    following_.push_back(uri);
    Alternatives all;
    for (const Json& target : expand(resolve(uri), path, depth + 1))
      for (const Json& end : followed(target, path, depth + 1)) all.push_back(end);
    following_.pop_back();
    return all;
  }

  Json normalise(const Json& s, const std::string& path, int depth) {
    bool exclusive = false;
    Alternatives finished;
    for (const Json& plain : expand(s, path, depth, &exclusive))
      for (Json& done : finish(plain, path, depth)) {
        budget_.spend(std::ssize(finished));
        if (std::find(finished.begin(), finished.end(), done) == finished.end() || exclusive)
          finished.push_back(std::move(done));
      }
    if (finished.empty()) return false;
    if (finished.size() == 1) return finished.front();
    return {{exclusive ? "oneOf" : "anyOf", finished}};
  }

  // One schema for each type that a plain one allows.
  Alternatives finish(const Json& plain, const std::string& path, int depth) {
    if (is_ref(plain)) return {reference(uri_of(plain))};
    if (plain.contains("$dynamicRef") || plain.contains("$recursiveRef")) note(path, "'$dynamicRef'");
    if (plain.contains("not") && plain["not"] != false) note(path, "'not'");
    if (plain.contains("enum") || plain.contains("const")) return values_of(plain, path);
    Json types = types_of(plain, path);
    if (types.empty()) return {Json::object()};
    Alternatives all;
    for (const Json& type : types) {
      Json one = {{"type", type}};
      const std::string name = type.is_string() ? type.get<std::string>() : "";
      if (name == "object") {
        Alternatives objects = object(plain, path, depth);
        all.insert(all.end(), objects.begin(), objects.end());
        continue;
      }
      if (name == "array" && !array(plain, path, depth, one)) continue;
      const auto note_here = [&](std::string_view what) { note(path, what); };
      if (name == "string") schema::finish_string(plain, path, one, note_here, done_.shapes);
      if (name == "integer" || name == "number") schema::finish_number(plain, path, one, note_here);
      all.push_back(std::move(one));
    }
    return all;
  }

  Json types_of(const Json& plain, const std::string& path) const {
    Json types = Json::array();
    if (plain.contains("type")) {
      types = plain["type"].is_array() ? plain["type"] : Json::array({plain["type"]});
      for (const Json& type : types)
        if (!type.is_string() || !known_type(type.get<std::string>()))
          throw Refused{fmt::format("{}: there is no type {}", path, type.dump().substr(0, 40))};
    } else {
      // What speaks of one kind of values is meant for it.
      for (const auto& [key, value] : plain.items()) {
        const std::string_view type = schema::type_of_keyword(key);
        if (!type.empty() && std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
      }
    }
    if (plain.contains("nullable") && plain["nullable"] == true && !types.empty() &&
        std::find(types.begin(), types.end(), "null") == types.end())
      types.push_back("null");
    return types;
  }

  static bool known_type(std::string_view type) {
    for (const std::string_view t : {"object", "array", "string", "number", "integer", "boolean", "null"})
      if (t == type) return true;
    return false;
  }

  // The values of "enum" or "const" that the other keywords allow.
  Alternatives values_of(const Json& plain, const std::string& path) {
    Json values = Json::array();
    const Json given = plain.contains("enum") ? plain["enum"] : Json::array({plain["const"]});
    for (const Json& value : given) {
      count(0);
      budget_.spend_copy(value);
      if (plain.contains("enum") && plain.contains("const") && value != plain["const"]) continue;
      if (schema::allows(plain, value, [&](std::string_view what) { note(path, what); })) values.push_back(value);
    }
    if (values.empty()) return {};
    if (values.size() == 1) return {{{"const", values.front()}}};
    if (values.size() <= kFewValues) return {{{"enum", values}}};
    // The library compiles a long list in time that grows with its square.
    std::vector<std::string> texts;
    Json others = Json::array();
    for (const Json& value : values)
      if (value.is_string() && is_unescaped(value.get_ref<const std::string&>()))
        texts.push_back(value.get<std::string>());
      else
        others.push_back(value);
    Alternatives all;
    if (!texts.empty()) all.push_back({{"type", "string"}, {"pattern", choice_pattern(std::move(texts))}});
    if (!others.empty()) all.push_back({{"enum", others}});
    return all;
  }

  // As JSON it is the text between two quotes. The library's patterns are of ASCII.
  static bool is_unescaped(const std::string& text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
  }

  // False: no array satisfies it, or only empty ones could and none may be.
  bool array(const Json& plain, const std::string& path, int depth, Json& to) {
    Json prefix = Json::array(), rest = true;
    if (plain.contains("items") && plain["items"].is_array()) {  // of older drafts
      prefix = plain["items"];
      if (plain.contains("additionalItems")) rest = plain["additionalItems"];
    } else {
      if (plain.contains("prefixItems")) prefix = plain["prefixItems"];
      if (plain.contains("items"))
        rest = plain["items"];
      else if (plain.contains("unevaluatedItems"))
        rest = plain["unevaluatedItems"];
    }
    for (const char* key : {"minItems", "maxItems"})
      if (const auto n = schema::whole(plain, key)) to[key] = *n;
    if (plain.contains("uniqueItems") && plain["uniqueItems"] == true &&
        !(plain.contains("maxItems") && plain["maxItems"] == 1))
      note(path, "'uniqueItems'");
    if (plain.contains("contains")) note(path, "'contains'");
    const auto index = [&](size_t i) { return fmt::format("{}/prefixItems/{}", path, i); };
    Json items = Json::array();
    for (size_t i = 0; i < prefix.size(); ++i) {
      Json item = normalise(prefix[i], index(i), depth + 1);
      if (item == false) {  // the array ends before it
        rest = false;
        break;
      }
      items.push_back(item == true ? Json::object() : std::move(item));
    }
    if (!items.empty()) to["prefixItems"] = items;
    Json other = normalise(rest, path + "/items", depth + 1);
    const auto least = schema::whole(to, "minItems").value_or(0);
    if (other == false && least > std::ssize(items)) return false;
    if (other == false && items.empty()) {
      to["maxItems"] = 0;
      return true;
    }
    to["items"] = other.is_object() && other.empty() ? Json(true) : std::move(other);
    if (to["items"] == true) to["items"] = Json::object();
    if (to["items"].is_object() && to["items"].empty()) to.erase("items");
    return true;
  }

  Alternatives object(const Json& plain, const std::string& path, int depth) {
    budget_.spend_copy(plain);
    Json rest = plain;
    if (!rest.contains("additionalProperties") && rest.contains("unevaluatedProperties"))
      rest["additionalProperties"] = rest["unevaluatedProperties"];
    if (!options_.additional_properties) schema::close(rest);
    Alternatives all;
    for (const Json& one : schema::without_dependencies(
             rest, [&](std::string_view what) { note(path, what); }, budget_)) {
      Json done = {{"type", "object"}};
      if (finish_object(one, path, depth, done)) all.push_back(std::move(done));
    }
    return all;
  }

  bool finish_object(const Json& plain, const std::string& path, int depth, Json& to) {
    Json required = Json::array();
    if (plain.contains("required") && plain["required"].is_array())  // a flag in the oldest draft
      for (const Json& key : plain["required"]) {
        budget_.spend_search(required);
        if (std::find(required.begin(), required.end(), key) == required.end()) required.push_back(key);
      }
    const Json* const patterns = plain.contains("patternProperties") ? &plain["patternProperties"] : nullptr;
    Json additional = plain.contains("additionalProperties") ? plain["additionalProperties"] : Json(true);
    Json others = normalise(additional, path + "/additionalProperties", depth + 1);
    Json properties = Json::object();
    if (plain.contains("properties")) {
      for (const auto& [key, value] : plain["properties"].items()) {
        budget_.spend_search(required);
        budget_.spend_search(properties);
        Json property = normalise(value, path + "/properties/" + pointer_step(key), depth + 1);
        const bool needed = std::find(required.begin(), required.end(), key) != required.end();
        if (property == false && needed) return false;
        if (property == false && others != false)
          note(path, fmt::format("that there is no property {}", pointer_step(key)));
        if (property == false) continue;
        if (std::any_of(key.begin(), key.end(), [](char c) { return (c & 0xe0) == 0 || c == '"' || c == '\\'; }))
          note(path, "a property whose name needs escapes");
        properties[key] = property == true ? Json::object() : std::move(property);
      }
    }
    for (const Json& key : required) {
      budget_.spend_search(properties);
      if (properties.contains(key.get<std::string>())) continue;
      if (patterns != nullptr) {
        note(path, fmt::format("that property {} is required, which 'properties' does not name,",
                               pointer_step(key.get<std::string>())));
        continue;
      }
      if (others == false) return false;
      properties[key.get<std::string>()] = others == true ? Json::object() : others;
    }
    if (patterns != nullptr) pattern_properties(*patterns, properties, path, depth, to);
    if (plain.contains("propertyNames")) property_names(plain, properties, path, depth, to);
    if (!properties.empty()) to["properties"] = properties;
    if (patterns != nullptr)
      std::erase_if(required.get_ref<Json::array_t&>(),
                    [&](const Json& k) { return !properties.contains(k.get<std::string>()); });
    if (!required.empty()) to["required"] = required;
    if (others.is_boolean() || !others.empty()) to["additionalProperties"] = others;
    count_properties(plain, properties, path, to);
    return true;
  }

  void count_properties(const Json& plain, const Json& properties, const std::string& path, Json& to) {
    for (const char* key : {"minProperties", "maxProperties"}) {
      if (!plain.contains(key)) continue;
      const auto n = schema::whole(plain, key);
      // Counting beside many properties is a grammar of very many rules.
      if (static_cast<int64_t>(properties.size()) * *n > 4096)
        note(path, fmt::format("'{}'", key));
      else
        to[key] = *n;
    }
  }

  void pattern_properties(const Json& patterns, const Json& properties, const std::string& path, int depth, Json& to) {
    Json out = Json::object();
    for (const auto& [given, value] : patterns.items()) {
      const std::optional<std::string> read =
          schema::pattern_in(given, "'patternProperties'", path, [&](std::string_view what) { note(path, what); });
      if (!read) continue;
      const std::string& pattern = *read;
      Json s = normalise(value, path + "/patternProperties/" + pointer_step(pattern), depth + 1);
      if (s == false) {
        note(path, fmt::format("that no property matches {}", pointer_step(pattern)));
        continue;
      }
      budget_.spend_search(out);
      budget_.spend(std::ssize(properties));
      out[pattern] = s == true ? Json::object() : std::move(s);
      for (const auto& [key, property] : properties.items())
        if (may_match(pattern, key) && property != out[pattern] && !out[pattern].empty())
          note(path, fmt::format("'patternProperties' of {}, which 'properties' names,", pointer_step(key)));
    }
    if (out.size() > 1) note(path, "that a property obeys each of 'patternProperties' that its name matches");
    if (!out.empty()) to["patternProperties"] = std::move(out);
  }

  void property_names(const Json& plain, const Json& properties, const std::string& path, int depth, Json& to) {
    Json names = normalise(plain["propertyNames"], path + "/propertyNames", depth + 1);
    if (names == true || (names.is_object() && names.empty())) return;
    if (names == false) {
      to["maxProperties"] = 0;
      return;
    }
    if (!properties.empty() || plain.contains("patternProperties") || is_ref(names) || !names.contains("type"))
      note(path, "'propertyNames'");
    else
      to["propertyNames"] = std::move(names);
  }

  const Json& root_;
  const GateOptions options_;
  GatedSchema done_;
  std::map<std::string, std::string> names_;  // of definitions, by reference
  std::vector<std::pair<std::string, std::string>> pending_;
  std::vector<std::string> following_;
  int nodes_ = 0;
  schema::Budget budget_;
};

}  // namespace

Result<GatedSchema> gate_schema(const nlohmann::ordered_json& schema, const GateOptions& options) {
  if (!schema.is_object() && !schema.is_boolean())
    return request_error("the JSON schema must be an object, not {}", schema.type_name());
  try {
    return Gate(schema, options).run();
  } catch (const Refused& r) {
    return request_error("the JSON schema cannot be used: {}", r.why);
  } catch (const nlohmann::json::exception& e) {
    return request_error("the JSON schema cannot be used: a keyword has a value of the wrong type ({})", e.what());
  }
}

}  // namespace quire
