// JSON from the network. It is hostile until parsed: size, nesting, and the number of values are limited, and an
// object that names a key twice is refused rather than read one way or the other.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/protocol/api_error.h"

namespace quire::server {

using Json = nlohmann::ordered_json;  // keeps the order of keys: chat templates print objects

struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  size_t max_depth = 64;
  size_t max_values = 2'000'000;  // of every kind, keys not counted
};

// One whole document. Errors are 400 (413 beyond max_bytes) and say where: "... at byte 120 ...".
ApiResult<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// The same, which must be an object: the body of a request.
ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits = {});

// Compact text; invalid UTF-8 (which only our own mistakes could bring in) becomes U+FFFD.
std::string dump(const Json& value);

// What a value is, for messages: "a string", "an array", ...
std::string_view json_kind(const Json& value);

}  // namespace quire::server
