#include "server/protocol/json.h"

#include "gguf/metadata.h"
#include "tokenizer/vocab.h"

namespace quire::server {
ApiResult<JsonDocument> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return ApiError{413, fmt::format("the body has {} bytes; at most {} are allowed", text.size(), limits.max_bytes),
                    "", ""};
  JsonBuilder<Json, SeededHash> builder({limits.max_depth, limits.max_values, limits.max_blocks}, gguf::printable);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return JsonDocument(builder.take());
  return bad_field("", "invalid_json", "the body is not valid JSON: {}", builder.error());
}

ApiResult<JsonDocument> parse_json_object(std::string_view text, const JsonLimits& limits) {
  if (text.empty()) return bad_field("", "invalid_json", "the body is empty; a JSON object is expected");
  QUIRE_TRY(JsonDocument document, parse_json(text, limits));
  if (!document->is_object())
    return bad_field("", "invalid_json", "the body must be a JSON object, not {}", json_kind(*document));
  return document;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string_view json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

}  // namespace quire::server
