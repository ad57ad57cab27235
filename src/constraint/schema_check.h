// Whether the keywords of a schema have values that they can have. Internal to the gate.
#pragma once

#include "constraint/schema_merge.h"

namespace quire::schema {

// Refused, with the path of the keyword, where a value is of the wrong type or out of range: "minItems" -1, "required"
// "a". Looks at every schema within it, and at what its references lead to. Time grows with the schema, not with its
// depth, and nothing recurses.
void check_keywords(const Json& root, Budget& budget);

}  // namespace quire::schema
