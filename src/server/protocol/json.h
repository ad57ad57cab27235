// JSON from the network. It is hostile until parsed: size, nesting, and the number of values are limited, and an
// object that names a key twice is refused rather than read one way or the other.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/json_builder.h"
#include "server/protocol/api_error.h"

namespace quire::server {

using Json = nlohmann::ordered_json;  // keeps the order of keys: chat templates print objects

struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  size_t max_depth = 64;
  // What a value takes of memory has little to do with its length: 16 bytes for a number, some 100 for an empty object.
  // Longer arrays of tokens than any context are numbers; nothing that clients send has so many strings and objects.
  size_t max_values = 2'000'000;  // of every kind, keys not counted
  size_t max_blocks = 400'000;    // strings, arrays, objects and members of objects
};

// A document from the network. Destroying it takes no memory: see dismantle().
class JsonDocument {
 public:
  JsonDocument() = default;
  JsonDocument(Json value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  JsonDocument(JsonDocument&& other) noexcept : value_(std::move(other.value_)) {}
  JsonDocument& operator=(JsonDocument&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~JsonDocument() { dismantle(value_); }

  Json& operator*() { return value_; }
  const Json& operator*() const { return value_; }
  Json* operator->() { return &value_; }
  const Json* operator->() const { return &value_; }

 private:
  Json value_;
};

// JavaScript cuts texts between the halves of a UTF-16 pair, and writes the half that is left as an escape, which
// stands for no character: \ud83d. With U+FFFD in place of such halves, as browsers write them, escape for escape;
// nothing where there are none. Linear in the text, whatever it is.
std::optional<std::string> without_half_pairs(std::string_view json);

// One whole document; half a pair of surrogates is U+FFFD. Errors are 400 (413 beyond max_bytes) and say where: "... at
// byte 120 ...".
ApiResult<JsonDocument> parse_json(std::string_view text, const JsonLimits& limits = {});

// The same, which must be an object: the body of a request.
ApiResult<JsonDocument> parse_json_object(std::string_view text, const JsonLimits& limits = {});

// Compact text; invalid UTF-8 (which only our own mistakes could bring in) becomes U+FFFD.
std::string dump(const Json& value);

// What a value is, for messages: "a string", "an array", ...
std::string_view json_kind(const Json& value);

}  // namespace quire::server
