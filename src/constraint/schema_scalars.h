// What is enforced of strings and numbers. Internal to the gate.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "constraint/schema_merge.h"

namespace quire::schema {

using Note = std::function<void(std::string_view what)>;

// A pattern as the library reads it. None: no grammar holds a text to it, as `note` is told; Refused: it is none.
std::optional<std::string> pattern_in(const std::string& pattern, std::string_view keyword, const std::string& path,
                                      const Note& note);
// Write the keywords of strings or numbers that a plain schema has into `to`, as they are enforced; the others go to
// `note`, and formats of which only the shape is enforced to `shapes`.
void finish_string(const Json& plain, const std::string& path, Json& to, const Note& note,
                   std::vector<std::string>& shapes);
void finish_number(const Json& plain, const std::string& path, Json& to, const Note& note);
// Whether a value of "enum" or "const" has the schema's type and is within its limits.
bool allows(const Json& plain, const Json& value, const Note& note);
// A member as a number from 0 to 10^9.
std::optional<int64_t> whole(const Json& s, const char* key);

}  // namespace quire::schema
