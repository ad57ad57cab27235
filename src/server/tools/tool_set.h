// The tools that a request offers, and what their schemas say of arguments.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/protocol/json.h"

namespace quire::server {

struct Tool {
  std::string name;
  Json parameters;      // JSON schema of the arguments, an object; null: nothing is said
  bool strict = false;  // its arguments must obey the schema
  bool custom = false;  // takes one text, its argument "input", instead of an object
};

class ToolSet {
 public:
  void add(Tool tool) { tools_.push_back(std::move(tool)); }
  bool empty() const { return tools_.empty(); }
  size_t size() const { return tools_.size(); }
  const Tool* find(std::string_view name) const;
  std::span<const Tool> all() const { return tools_; }

 private:
  std::vector<Tool> tools_;
};

// Which kinds of values a schema allows. Nothing set: it does not say.
struct ValueTypes {
  bool string = false, integer = false, number = false, boolean = false, null = false, object = false, array = false;
  bool any() const { return string || integer || number || boolean || null || object || array; }
};
// Of one argument. `tool` may be null: nothing is known of the argument then. Follows "anyOf", "oneOf", "allOf",
// "enum", "const" and references within the schema, to a limited depth.
ValueTypes types_of(const Tool* tool, std::string_view argument);

// JSON text of a value that a model wrote as plain text: what `types` allow, a string where it is nothing else.
// Python's True, False and None are understood, since chat templates print them.
std::string typed_value(std::string_view text, const ValueTypes& types);

// Appends a byte of a string as JSON text has it between its quotes.
void append_escaped(std::string& to, char c);

}  // namespace quire::server
