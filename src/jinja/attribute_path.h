// The `attribute=` of filters: "a.b.0" walks entries; several paths with commas give a list.
#pragma once

#include <optional>

#include "jinja/interpreter.h"

namespace quire::jinja {

class AttributePath {
 public:
  // none: the item itself. ignore_case lowers strings at the end of the path.
  AttributePath(Interpreter& in, const Value& attribute, bool ignore_case, bool several = false);
  Value of(const Value& item, const std::optional<Value>& otherwise = std::nullopt) const;

 private:
  Value walk(const Value& item, const std::vector<Value>& path, const std::optional<Value>& otherwise) const;
  Interpreter& in_;
  std::vector<std::vector<Value>> paths_;
  bool ignore_case_;
  bool several_;
};

}  // namespace quire::jinja
