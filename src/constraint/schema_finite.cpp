#include "constraint/schema_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "constraint/schema_refs.h"

namespace quire::schema {
namespace {

constexpr std::string_view kDefinitions = "#/$defs/";

// Each schema is satisfied when one of its parts is, or when all are that it needs. Which are is the least solution of
// that: what is satisfied by nothing but itself is not.
class Finite {
 public:
  Finite(Json& root, const Note& note) : root_(root), note_(note) {}

  bool run() {
    node_of(root_);
    if (root_.is_object() && root_.contains("$defs"))
      for (auto& [name, definition] : root_["$defs"].items())
        definitions_.emplace(std::string(kDefinitions) + name, node_of(definition));
    for (size_t i = 0; i < nodes_.size(); ++i) describe(i);
    solve();
    if (!nodes_[0].satisfied) return false;
    std::unordered_set<std::string> endless;
    for (const auto& [uri, node] : definitions_)
      if (!nodes_[node].satisfied) endless.insert(uri.substr(kDefinitions.size()));
    // Parts come behind what they are part of: from the last one on, erasing moves nothing that is still looked at.
    for (size_t i = nodes_.size(); i-- > 0;)
      if (nodes_[i].satisfied && nodes_[i].schema->is_object()) prune(*nodes_[i].schema);
    if (root_.is_object() && root_.contains("$defs")) {
      erase_if(root_["$defs"], [&](const std::string& name, const Json&) { return endless.contains(name); });
      if (root_["$defs"].empty()) root_.erase("$defs");
    }
    return true;
  }

 private:
  struct Node {
    Json* schema;
    size_t missing = 0;  // parts that are not satisfied yet
    bool satisfied = false;
    std::vector<size_t> users;  // nodes that wait for this one
  };

  size_t node_of(Json& schema) {
    const auto [at, added] = index_.try_emplace(&schema, nodes_.size());
    if (added) nodes_.push_back({&schema});
    return at->second;
  }
  bool satisfied(const Json& schema) const {
    const auto at = index_.find(&schema);
    return at == index_.end() || nodes_[at->second].satisfied;
  }

  void all_of(size_t node, const std::vector<size_t>& parts) {
    nodes_[node].missing = parts.size();
    for (const size_t part : parts) nodes_[part].users.push_back(node);
    if (parts.empty()) satisfy(node);
  }
  void one_of(size_t node, const std::vector<size_t>& parts) {
    nodes_[node].missing = 1;
    for (const size_t part : parts) nodes_[part].users.push_back(node);
  }
  void satisfy(size_t node) {
    nodes_[node].satisfied = true;
    solved_.push_back(node);
  }

  void describe(size_t node) {
    Json& s = *nodes_[node].schema;
    if (s.is_boolean()) {
      if (s == true) satisfy(node);
      return;
    }
    if (s.contains("$ref")) {
      const auto at = definitions_.find(s["$ref"].get<std::string>());
      if (at != definitions_.end()) one_of(node, {at->second});
      return;
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (!s.contains(keyword)) continue;
      std::vector<size_t> parts;
      for (Json& option : s[keyword]) parts.push_back(node_of(option));
      return one_of(node, parts);
    }
    const std::string type = s.contains("type") && s["type"].is_string() ? s["type"].get<std::string>() : "";
    if (type == "object") return object(node, s);
    if (type == "array") return array(node, s);
    if (!excludes_itself(s)) satisfy(node);
  }

  static bool is_above(const Json& s, const char* low, const char* high, bool or_equal = false) {
    if (!s.contains(low) || !s.contains(high) || !s[low].is_number() || !s[high].is_number()) return false;
    return or_equal ? s[low] >= s[high] : s[low] > s[high];
  }
  static bool excludes_itself(const Json& s) {
    return is_above(s, "minLength", "maxLength") || is_above(s, "minimum", "maximum") ||
           is_above(s, "exclusiveMinimum", "maximum", true) || is_above(s, "minimum", "exclusiveMaximum", true) ||
           is_above(s, "exclusiveMinimum", "exclusiveMaximum", true);
  }

  void object(size_t node, Json& s) {
    const std::vector<std::string> required =
        s.contains("required") ? s["required"].get<std::vector<std::string>>() : std::vector<std::string>();
    std::unordered_map<std::string_view, size_t> properties;
    if (s.contains("properties"))
      for (auto& [key, property] : s["properties"].items()) properties.emplace(key, node_of(property));
    if (s.contains("patternProperties"))
      for (auto& [pattern, property] : s["patternProperties"].items()) node_of(property);
    for (const char* keyword : {"additionalProperties", "propertyNames"})
      if (s.contains(keyword)) node_of(s[keyword]);
    const bool closed =
        s.contains("additionalProperties") && s["additionalProperties"] == false && !s.contains("patternProperties");
    if (is_above(s, "minProperties", "maxProperties") ||
        static_cast<int64_t>(required.size()) > whole(s, "maxProperties").value_or(INT64_MAX) ||
        (closed && whole(s, "minProperties").value_or(0) > static_cast<int64_t>(properties.size())))
      return;
    std::vector<size_t> parts;
    for (const std::string& key : required)
      if (const auto at = properties.find(key); at != properties.end()) parts.push_back(at->second);
    all_of(node, parts);
  }

  void array(size_t node, Json& s) {
    const int64_t least = whole(s, "minItems").value_or(0);
    std::vector<size_t> parts;
    if (s.contains("prefixItems"))
      for (Json& item : s["prefixItems"]) {
        const size_t part = node_of(item);
        if (std::ssize(parts) < least) parts.push_back(part);
      }
    if (s.contains("items")) {
      const size_t part = node_of(s["items"]);
      if (std::ssize(parts) < least) parts.push_back(part);
    }
    if (!is_above(s, "minItems", "maxItems")) all_of(node, parts);
  }

  void solve() {
    while (!solved_.empty()) {
      const size_t node = solved_.back();
      solved_.pop_back();
      for (const size_t user : nodes_[node].users)
        if (!nodes_[user].satisfied && --nodes_[user].missing == 0) satisfy(user);
    }
  }

  // -- what is left out

  template <class Condition>
  static void erase_if(Json& object, const Condition& condition) {
    Json::object_t kept;  // taken over in order: erasing looks for each key, and moves what is behind it
    kept.reserve(object.size());
    for (auto& [key, value] : object.get_ref<Json::object_t&>())
      if (!condition(key, value)) kept.emplace_back(key, std::move(value));
    object = std::move(kept);
  }

  void prune(Json& s) {
    for (const char* keyword : {"anyOf", "oneOf"})
      if (s.contains(keyword)) {
        Json kept = Json::array();
        for (Json& option : s[keyword])
          if (satisfied(option)) kept.push_back(std::move(option));
        s[keyword] = std::move(kept);
      }
    if (s.contains("properties")) {
      const bool closed = s.contains("additionalProperties") && s["additionalProperties"] == false;
      erase_if(s["properties"], [&](const std::string& key, const Json& property) {
        if (satisfied(property)) return false;
        if (!closed) note_(fmt::format("that there is no property {}", pointer_step(key)));
        return true;
      });
    }
    if (s.contains("patternProperties"))
      erase_if(s["patternProperties"], [&](const std::string&, const Json& property) { return !satisfied(property); });
    if (s.contains("additionalProperties") && !satisfied(s["additionalProperties"])) s["additionalProperties"] = false;
    prune_items(s);
  }

  void prune_items(Json& s) {
    bool ends = s.contains("items") && !satisfied(s["items"]);
    size_t count = 0;
    if (s.contains("prefixItems")) {
      Json& prefix = s["prefixItems"];
      while (count < prefix.size() && satisfied(prefix[count])) ++count;
      if (count < prefix.size()) {
        ends = true;
        prefix.get_ref<Json::array_t&>().resize(count);
      }
    }
    if (!ends) return;
    s["items"] = false;
    if (count > 0) return;
    s.erase("items");
    s.erase("prefixItems");
    s["maxItems"] = 0;
  }

  Json& root_;
  const Note& note_;
  std::vector<Node> nodes_;
  std::unordered_map<const Json*, size_t> index_;
  std::unordered_map<std::string, size_t> definitions_;
  std::vector<size_t> solved_;
};

}  // namespace

bool leave_out_endless(Json& schema, const Note& note) {
  return Finite(schema, note).run();
}

}  // namespace quire::schema
