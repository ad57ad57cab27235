// What no finite value satisfies: an object that requires itself, limits that exclude each other. Internal to the gate.
#pragma once

#include "constraint/schema_merge.h"
#include "constraint/schema_scalars.h"

namespace quire::schema {

// Leaves out of a schema that the gate wrote (with "$defs") what no finite value satisfies, where a value need not have
// it: a text that began it could not end. False: nothing satisfies the schema. `note` is told what is left out though a
// value could have it in another place of the grammar. Takes time and memory in proportion to the schema.
bool leave_out_endless(Json& schema, const Note& note);

}  // namespace quire::schema
