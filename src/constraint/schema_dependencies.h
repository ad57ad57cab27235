// Keys of an object that ask for others. Internal to the gate.
#pragma once

#include <vector>

#include "constraint/schema_scalars.h"

namespace quire::schema {

// "dependentRequired" and its older names as alternatives: a key that asks for others is there with them, or not at
// all. `plain` is an object's schema without combinators; `note` is told what is left out.
std::vector<Json> without_dependencies(const Json& plain, const Note& note, Budget& budget);

}  // namespace quire::schema
