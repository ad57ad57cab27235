#include "convert/json.h"

#include <filesystem>

#include "core/input_file.h"
#include "core/json_builder.h"
#include "gguf/metadata.h"
#include "tokenizer/vocab.h"

namespace quire::convert {
using nlohmann::json;

Result<json> parse_json(std::string_view text) {
  JsonBuilder<json, SeededHash> builder({kMaxJsonDepth}, gguf::printable);
  if (json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  return file_error("not valid JSON: {}", builder.error());
}

Result<std::string> read_text_file(const std::string& path) {
  return read_input_file(path, kMaxJsonBytes);
}

Result<json> read_json_object(const std::string& path) {
  QUIRE_TRY(const std::string text, read_text_file(path));
  QUIRE_TRY(json document, parse_json(text).context(path));
  if (!document.is_object()) return file_error("{}: holds no JSON object", path);
  return document;
}

Result<json> read_json_object_or_empty(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return json::object();
  return read_json_object(path);
}

const json* find_member(const json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

}  // namespace quire::convert
