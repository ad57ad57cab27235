// Schemas without combinators ("plain" ones): what both of two say, as one. Internal to the gate.
#pragma once

#include <functional>
#include <string_view>

#include "constraint/schema_budget.h"

namespace quire::schema {

// Whether a keyword restricts values; all others are annotations, or where definitions lie.
bool restricts(std::string_view keyword);
// Whether it has any such keyword.
bool restricts_anything(const Json& schema);
// Types that a keyword speaks of: "minLength" of strings. Empty: of all.
std::string_view type_of_keyword(std::string_view keyword);
std::string_view type_of_value(const Json& value);  // "integer" for whole numbers
bool type_takes(std::string_view type, std::string_view of_value);

// A schema whose values are those of both, where neither has combinators or references. `note` is told the keywords of
// which only one could be kept. False as JSON: nothing satisfies both.
Json merge_plain(const Json& a, const Json& b, const std::function<void(std::string_view keyword)>& note,
                 Budget& budget);

}  // namespace quire::schema
