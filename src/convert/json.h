// JSON files of a model folder. They come from strangers: nesting is limited (the parser keeps no call stack,
// but what walks a document later may), and an object that names a key twice is refused rather than read one
// way or the other.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/result.h"

namespace quire::convert {

inline constexpr size_t kMaxJsonDepth = 64;
inline constexpr uint64_t kMaxJsonBytes = uint64_t{1} << 28;

// One whole document. Errors say where: "byte 120: ...".
Result<nlohmann::json> parse_json(std::string_view text);

// The document in a file, which must be an object. Errors begin with the path.
Result<nlohmann::json> read_json_object(const std::string& path);
// The same; an empty object if there is no such file.
Result<nlohmann::json> read_json_object_or_empty(const std::string& path);

// All bytes of a file of at most kMaxJsonBytes. Errors begin with the path.
Result<std::string> read_text_file(const std::string& path);

// The member, or null if it is absent or null or `object` is no object.
const nlohmann::json* find_member(const nlohmann::json& object, std::string_view key);

}  // namespace quire::convert
