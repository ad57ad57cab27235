#include "server/protocol/json.h"

#include <cctype>

#include "gguf/metadata.h"
#include "tokenizer/vocab.h"

namespace quire::server {
namespace {

enum class Half { kNone, kHigh, kLow };
constexpr size_t kEscape = 6;  // bytes of \uXXXX

// What an escape at the beginning of the text stands for.
Half half_at(std::string_view text) {
  if (text.size() < kEscape || text[0] != '\\' || text[1] != 'u' || (text[2] != 'd' && text[2] != 'D'))
    return Half::kNone;
  const auto is_hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  if (!is_hex(text[4]) || !is_hex(text[5])) return Half::kNone;
  if (std::string_view("89abAB").find(text[3]) != std::string_view::npos) return Half::kHigh;
  return std::string_view("cdefCDEF").find(text[3]) != std::string_view::npos ? Half::kLow : Half::kNone;
}

}  // namespace

std::optional<std::string> without_half_pairs(std::string_view json) {
  std::optional<std::string> mended;
  // A backslash outside a string is a mistake that the parser finds, at the same place.
  for (size_t at = json.find('\\'); at < json.size(); at = json.find('\\', at)) {
    const Half half = half_at(json.substr(at));
    if (half == Half::kNone) {
      at += 2;  // an escaped backslash begins no escape
      continue;
    }
    if (half == Half::kHigh && half_at(json.substr(at + kEscape)) == Half::kLow) {
      at += 2 * kEscape;
      continue;
    }
    if (!mended) mended = json;
    mended->replace(at, kEscape, "\\ufffd");
    at += kEscape;
  }
  return mended;
}

ApiResult<JsonDocument> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return ApiError{413, fmt::format("the body has {} bytes; at most {} are allowed", text.size(), limits.max_bytes),
                    "", ""};
  const std::optional<std::string> mended = without_half_pairs(text);
  if (mended) text = *mended;
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
