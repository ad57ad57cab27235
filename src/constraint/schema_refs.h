// Where references within a schema lead. Internal to the gate.
#pragma once

#include <string>
#include <string_view>

#include "constraint/schema_merge.h"

namespace quire::schema {

// The schema that "#" or "#/a/b" leads to; Refused where it leads nowhere.
const Json& resolve(const Json& root, const std::string& uri, Budget& budget);
// A step of such a path, as messages show it.
std::string pointer_step(std::string_view step);

}  // namespace quire::schema
