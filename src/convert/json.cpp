#include "convert/json.h"

#include <filesystem>

#include "gguf/mapping.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using nlohmann::json;

// Builds the document; every handler returns false to stop.
class Builder : public nlohmann::json_sax<json> {
 public:
  json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool x) override { return add(x) != nullptr; }
  bool number_integer(int64_t x) override { return add(x) != nullptr; }
  bool number_unsigned(uint64_t x) override { return add(x) != nullptr; }
  bool number_float(double x, const std::string&) override { return add(x) != nullptr; }
  bool string(std::string& x) override { return add(std::move(x)) != nullptr; }
  bool binary(json::binary_t&) override { return fail("binary data"); }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const auto [at, fresh] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    if (!fresh) return fail(fmt::format("key {} occurs twice in one object", gguf::printable(name)));
    member_ = &at->second;
    return true;
  }

  bool parse_error(size_t position, const std::string& last_token, const json::exception&) override {
    return fail(syntax_complaint(position, last_token));
  }

 private:
  bool fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  json* add(json value) {
    json* at = &root_;
    if (!open_.empty()) {
      if (open_.back()->is_array()) {
        auto& array = open_.back()->get_ref<json::array_t&>();
        at = &array.emplace_back();
      } else {
        at = member_;
      }
    }
    *at = std::move(value);
    return at;
  }
  bool open(json value) {
    if (open_.size() == kMaxJsonDepth)
      return fail(fmt::format("nested more than {} levels deep", kMaxJsonDepth));
    open_.push_back(add(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*>
      open_;  // containers from the root inwards; an array grows only while its last element is closed
  json* member_ = nullptr;  // where the value of the key just read goes
  std::string error_;
};

}  // namespace

std::string syntax_complaint(size_t position, std::string_view last_token) {
  constexpr size_t kShown = 40;  // the end of the token: that is where the parser stopped
  if (last_token.size() > kShown) last_token.remove_prefix(last_token.size() - kShown);
  return fmt::format("syntax error at byte {} near {}", position, gguf::printable(last_token));
}

Result<json> parse_json(std::string_view text) {
  Builder builder;
  if (json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  return file_error("not valid JSON: {}", builder.error());
}

Result<std::string> read_text_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return request_error("{}: is a folder, not a file", path);
  if (std::filesystem::file_size(path, error) == 0 && !error) return std::string();
  QUIRE_TRY(const gguf::Mapping file, gguf::Mapping::open(path));
  if (file.bytes().size() > kMaxJsonBytes)
    return file_error("{}: {} bytes are more than the {} that such a file may have", path,
                      file.bytes().size(), kMaxJsonBytes);
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
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
