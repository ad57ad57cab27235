// Patterns and formats of strings in schemas. Internal to the gate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// A pattern that says of a string what this one and the lengths say, where it is one class of characters, repeated:
// "^[a-z]+$" with lengths from 3 to 9 is "^[a-z]{3,9}$". None: there is no simple one.
std::optional<std::string> pattern_of_length(std::string_view pattern, std::optional<int64_t> least,
                                             std::optional<int64_t> most);

// Whether the library has a grammar for a format, whether that takes exactly the strings of the format, and whether a
// format says anything at all ("password" does not).
bool has_format(std::string_view format);
bool is_exact_format(std::string_view format);
bool asserts_format(std::string_view format);

// False only where a name surely does not match a pattern.
bool may_match(std::string_view pattern, std::string_view name);

}  // namespace quire
