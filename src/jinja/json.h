// Values to and from JSON. Writing follows Python's json.dumps, which the templates were tested with.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "jinja/value.h"

namespace quire::jinja {

struct JsonStyle {
  bool ascii = false;  // \uXXXX for everything above U+007E
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level; absent: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

Text to_json(Budget& budget, const Value& v, const JsonStyle& style);

// Integers above 2^63 - 1 become floats. `origin`: of all strings in it, keys included.
Value from_json(Budget& budget, const nlohmann::ordered_json& json, Origin origin, int depth = 0);

}  // namespace quire::jinja
