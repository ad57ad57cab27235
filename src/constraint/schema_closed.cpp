#include "constraint/schema_closed.h"

#include <string>
#include <unordered_set>

#include "constraint/schema_scalars.h"

namespace quire::schema {
namespace {

// Adds properties of any value to those that there are.
class Declared {
 public:
  explicit Declared(Json& properties) : properties_(properties.get_ref<Json::object_t&>()) {
    for (const auto& [name, property] : properties_) known_.insert(name);
  }
  void add(const std::string& name) {
    if (known_.insert(name).second) properties_.emplace_back(name, true);
  }
  void add_names(const Json& names) {
    if (!names.is_array()) return;
    for (const Json& name : names)
      if (name.is_string()) add(name.get<std::string>());
  }
  // What a schema speaks of.
  void add_from(const Json& schema) {
    if (!schema.is_object()) return;
    if (const auto of = schema.find("properties"); of != schema.end() && of->is_object())
      for (const auto& [name, property] : of->items()) add(name);
    if (const auto required = schema.find("required"); required != schema.end()) add_names(*required);
  }

 private:
  Json::object_t& properties_;  // to which names are added that it does not have: looking for each would take long
  std::unordered_set<std::string> known_;
};

}  // namespace

void declare_conditional(const Json& s, Json& plain) {
  if (!s.contains("if") || !plain.contains("properties")) return;
  Declared declared(plain["properties"]);
  for (const char* keyword : {"then", "else"})
    if (const auto branch = s.find(keyword); branch != s.end()) declared.add_from(*branch);
}

void close(Json& plain) {
  if (!plain.contains("properties") || plain.contains("additionalProperties") || plain.contains("patternProperties"))
    return;
  Json properties = plain["properties"];
  Declared declared(properties);
  if (plain.contains("required")) declared.add_names(plain["required"]);
  for (const char* keyword : {"dependentRequired", "dependencies", "dependentSchemas"})
    if (plain.contains(keyword))
      for (const auto& [name, needs] : plain[keyword].items()) {
        declared.add_names(needs);
        declared.add_from(needs);
      }
  if (whole(plain, "minProperties").value_or(0) > std::ssize(properties)) return;
  plain["properties"] = std::move(properties);
  plain["additionalProperties"] = false;
}

}  // namespace quire::schema
