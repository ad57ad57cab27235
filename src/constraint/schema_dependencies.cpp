#include "constraint/schema_dependencies.h"

#include <fmt/format.h>

#include <algorithm>

#include "constraint/schema_refs.h"

namespace quire::schema {
namespace {

constexpr size_t kMostAlternatives = 16;

bool requires_key(const Json& s, const std::string& key) {
  return s.contains("required") && s["required"].is_array() &&
         std::find(s["required"].begin(), s["required"].end(), key) != s["required"].end();
}

// `one` as two: with the key and what it needs, and where it may be missing without it.
void divide(const Json& one, const std::string& key, const Json& needs, std::vector<Json>& to) {
  Json with = one;
  if (!with.contains("required")) with["required"] = Json::array();
  with["required"].push_back(key);
  for (const Json& need : needs) with["required"].push_back(need);
  to.push_back(std::move(with));
  if (requires_key(one, key)) return;
  Json without = one;
  without["properties"].erase(key);
  to.push_back(std::move(without));
}

}  // namespace

std::vector<Json> without_dependencies(const Json& plain, const Note& note, Budget& budget) {
  std::vector<Json> all = {plain};
  for (const char* keyword : {"dependentRequired", "dependencies", "dependentSchemas"}) {
    if (!plain.contains(keyword)) continue;
    for (Json& one : all) one.erase(keyword);
    for (const auto& [key, needs] : plain[keyword].items()) {
      for (const char* searched : {"properties", "required"})
        if (plain.contains(searched)) budget.spend_search(plain[searched]);
      const bool closed = plain.contains("additionalProperties") && plain["additionalProperties"] == false &&
                          !plain.contains("patternProperties");
      const bool known = plain.contains("properties") && plain["properties"].contains(key);
      if (closed && !known) continue;  // the key is never there
      if (!needs.is_array() || !(closed || requires_key(plain, key)) || all.size() * 2 > kMostAlternatives) {
        note(fmt::format("'{}' of {}", keyword, pointer_step(key)));
        continue;
      }
      std::vector<Json> next;
      for (const Json& one : all) {
        budget.spend_copy(one);
        divide(one, key, needs, next);
      }
      all = std::move(next);
    }
  }
  return all;
}

}  // namespace quire::schema
