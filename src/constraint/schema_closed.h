// Objects that say nothing of additional properties. Internal to the gate.
#pragma once

#include "constraint/schema_merge.h"

namespace quire::schema {

// Properties that an "if" would add where it holds, or does not, become ones that `plain` has too: conditions are not
// enforced, and must not make impossible what they ask for. `s`: the schema that `plain` is made of.
void declare_conditional(const Json& s, Json& plain);

// Says that there are no properties but those that a plain schema names anywhere, where it has "properties" and no word
// of others ("additionalProperties", "unevaluatedProperties", "patternProperties"). What several schemas say must have
// been merged before. Nothing is said where that would leave no object at all.
void close(Json& plain);

}  // namespace quire::schema
