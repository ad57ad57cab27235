#include "server/protocol/picture.h"

#include <algorithm>
#include <cctype>

#include "gguf/metadata.h"
#include "server/protocol/base64.h"
#include "server/protocol/media_policy.h"

namespace quire::server {
namespace {

Json* member(Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string type_of(const Json& object) {
  if (!object.is_object()) return {};
  const auto at = object.find("type");
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

bool same_letters(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == b;
}

bool begins_with(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char b, char a) { return same_letters(a, b); });
}

bool ends_with(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && begins_with(text.substr(text.size() - lower.size()), lower);
}

ApiResult<Json> from_base64_text(std::string_view text, const std::string& where, const std::string& field) {
  std::optional<std::vector<uint8_t>> bytes = from_base64(text);
  if (!bytes) return bad_field(field, "invalid_value", "'{}' is no base64", field);
  if (bytes->empty()) return bad_field(field, "invalid_value", "'{}' is empty: there is no picture", field);
  return Json{{"type", "image"}, {"data", Json::binary(std::move(*bytes))}, {"where", where}};
}

Json bytes_of(std::string_view text) {
  return Json::binary(std::vector<uint8_t>(text.begin(), text.end()));
}

ApiError elsewhere(std::string_view url, const std::string& field) {
  constexpr size_t kMostShown = 16;
  const size_t colon = url.find(':');
  const bool scheme = colon != std::string_view::npos && colon <= kMostShown;
  return bad_field(
      field, "invalid_value",
      "'{}' is {}: data: URLs are taken, with the picture as base64, and where the server allows them those of "
      "http:, https: and file:",
      field, scheme ? "a URL of " + gguf::printable(url.substr(0, colon + 1)) : std::string("no URL"));
}

// data:[TYPE][;PARAMETER...];base64,DATA: what the file is its bytes say.
ApiResult<Json> from_url(const Json& url, const std::string& where, const std::string& field) {
  if (!url.is_string()) return bad_field(field, "invalid_type", "'{}' must be a string, not {}", field, json_kind(url));
  const std::string_view text = url.get_ref<const std::string&>();
  if (MediaPolicy::knows_scheme(text))
    return Json{{"type", "image"}, {"link", bytes_of(text)}, {"where", where}, {"field", field}};
  if (!begins_with(text, "data:")) return elsewhere(text, field);
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos || !ends_with(text.substr(0, comma), ";base64"))
    return bad_field(field, "invalid_value", "'{}' is a data: URL without ';base64,'", field);
  return from_base64_text(text.substr(comma + 1), where, field);
}

// Of the Messages API.
ApiResult<Json> from_source(Json& source, const std::string& where, const std::string& field) {
  if (!source.is_object())
    return bad_field(field, "invalid_type", "'{}' must be an object, not {}", field, json_kind(source));
  if (const Json* const url = member(source, "url")) return from_url(*url, where, field + ".url");
  const Json* const data = member(source, "data");
  if (data != nullptr && data->is_string())
    return from_base64_text(data->get_ref<const std::string&>(), where, field + ".data");
  if (member(source, "file_id") != nullptr)
    return bad_field(field, "unsupported_parameter", "'{}' names a file: this server keeps none, send the picture",
                     field);
  return bad_field(field + ".data", "missing_parameter", "'{}' has no 'data' with the picture as base64", field);
}

ApiResult<Json> read_picture(Json& part, const std::string& where) {
  if (Json* const source = member(part, "source")) return from_source(*source, where, where + ".source");
  if (Json* const url = member(part, "image_url")) {
    const std::string field = where + ".image_url";
    if (!url->is_object()) return from_url(*url, where, field);
    Json* const inner = member(*url, "url");
    if (inner == nullptr) return bad_field(field + ".url", "missing_parameter", "'{}.url' is missing", field);
    return from_url(*inner, where, field + ".url");
  }
  if (const Json* const url = member(part, "url")) return from_url(*url, where, where + ".url");
  if (const Json* const data = member(part, "data"); data != nullptr && data->is_string())  // of MCP
    return from_base64_text(data->get_ref<const std::string&>(), where, where + ".data");
  if (member(part, "file_id") != nullptr)
    return bad_field(where + ".file_id", "unsupported_parameter",
                     "'{}.file_id' names a file: this server keeps none, send the picture", where);
  const char* const usual = type_of(part) == "image" ? "source" : "image_url";
  return bad_field(fmt::format("{}.{}", where, usual), "missing_parameter", "'{}.{}' is missing", where, usual);
}

}  // namespace

bool is_picture(const Json& part) {
  const std::string type = type_of(part);
  return type == "image" || type == "image_url" || type == "input_image";
}

ApiResult<Json> picture_part(Json& part, const std::string& where) {
  for (const char* const name : {"data", "link"})
    if (const Json* const bytes = member(part, name); bytes != nullptr && bytes->is_binary()) return std::move(part);
  QUIRE_TRY(Json picture, read_picture(part, where));
  if (Json* const mark = member(part, "cache_control")) picture["cache_control"] = std::move(*mark);
  part = Json();  // whose text is large
  return picture;
}

ApiResult<Json> picture_of_base64(Json& text, const std::string& where) {
  if (!text.is_string())
    return bad_field(where, "invalid_type", "'{}' must be a string of base64, not {}", where, json_kind(text));
  const std::string_view given = text.get_ref<const std::string&>();
  const bool url = begins_with(given, "data:") || MediaPolicy::knows_scheme(given);
  QUIRE_TRY(Json picture, url ? from_url(text, where, where) : from_base64_text(given, where, where));
  text = Json();
  return picture;
}

PicturePtr take_picture(Json& part) {
  Json *const data = member(part, "data"), *const link = member(part, "link");
  auto file = std::make_shared<PictureFile>();
  if (link != nullptr && link->is_binary()) {
    file->url.assign(link->get_binary().begin(), link->get_binary().end());
    file->field = part["field"].get<std::string>();
  } else if (data != nullptr && data->is_binary()) {
    file->bytes = std::move(static_cast<std::vector<uint8_t>&>(data->get_binary()));
  } else {
    return nullptr;
  }
  file->where = part["where"].get<std::string>();
  return file;
}

}  // namespace quire::server
