// What of a JSON schema is enforced. The library that compiles schemas reads one keyword of each and leaves the others
// alone without a word: so a schema is rewritten before it, into an equal one that it enforces whole, as far as there
// is one, and what is left out is told by keyword.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire {

struct GatedSchema {
  std::string text;  // what is to be compiled
  // "#/properties/a: uniqueItems is not enforced", at most kMostNotes of them; the schema is enforced but for these
  std::vector<std::string> unenforced;
  // Formats of which only the shape is checked: "date". By the standard they are annotations.
  std::vector<std::string> shapes;
  static constexpr size_t kMostNotes = 16;
};

struct GateOptions {
  // Objects whose schema has "properties" and no word of others may have any, as the standard has it. Otherwise they
  // have none, as servers do: models fill them with what nobody asked for.
  bool additional_properties = false;
  // Not empty: is asked now and then whether nobody waits for the schema any more.
  std::function<bool()> stop;
};

// Errors (Fault::kRequest): it is no schema, nothing can satisfy it, a reference leads nowhere, or it grows too large
// where keywords are combined (schema_budget.h), or options.stop says that nobody waits for it.
Result<GatedSchema> gate_schema(const nlohmann::ordered_json& schema, const GateOptions& options = {});

}  // namespace quire
