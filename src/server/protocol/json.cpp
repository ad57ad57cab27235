#include "server/protocol/json.h"

#include <unordered_set>
#include <vector>

#include "gguf/metadata.h"
#include "tokenizer/vocab.h"

namespace quire::server {
namespace {

// Builds the document; every handler returns false to stop.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}
  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool x) override { return add(x) != nullptr; }
  bool number_integer(int64_t x) override { return add(x) != nullptr; }
  bool number_unsigned(uint64_t x) override { return add(x) != nullptr; }
  bool number_float(double x, const std::string&) override { return add(x) != nullptr; }
  bool string(std::string& x) override { return add(std::move(x)) != nullptr; }
  bool binary(Json::binary_t&) override { return fail("binary data"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    Container& c = open_.back();
    auto& object = c.value->get_ref<Json::object_t&>();
    if (seen(c, object, name))
      return fail(fmt::format("key {} occurs twice in one object", gguf::printable(name)));
    object.emplace_back(name, nullptr);  // not emplace(): that would search once more
    member_ = &object.back().second;
    return true;
  }

  bool parse_error(size_t position, const std::string& last_token, const Json::exception& e) override {
    constexpr size_t kShown = 40;  // the end of the token: that is where the parser stopped
    std::string_view token = last_token;
    if (token.size() > kShown) token.remove_prefix(token.size() - kShown);
    const bool overflow = e.id == 406;  // nlohmann-json's out_of_range.406: a number beyond float64
    return fail(fmt::format("{} at byte {} near {}", overflow ? "a number out of range" : "syntax error",
                            position, gguf::printable(token)));
  }

 private:
  struct Container {
    Json* value;
    std::unordered_set<std::string, SeededHash> keys;  // of an object with many members
  };
  static constexpr size_t kFewMembers = 16;

  // Whether the object has this key, in constant time however many it has.
  static bool seen(Container& c, const Json::object_t& object, const std::string& name) {
    if (object.size() < kFewMembers) {
      for (const auto& [key, value] : object)
        if (key == name) return true;
      return false;
    }
    if (c.keys.empty())
      for (const auto& [key, value] : object) c.keys.insert(key);
    return !c.keys.insert(name).second;
  }
  bool fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  Json* add(Json value) {
    if (++values_ > limits_.max_values) {
      fail(fmt::format("more than {} values", limits_.max_values));
      return nullptr;
    }
    Json* at = &root_;
    if (!open_.empty()) {
      Json& parent = *open_.back().value;
      at = parent.is_array() ? &parent.get_ref<Json::array_t&>().emplace_back() : member_;
    }
    *at = std::move(value);
    return at;
  }
  bool open(Json value) {
    if (open_.size() == limits_.max_depth)
      return fail(fmt::format("nested more than {} levels deep", limits_.max_depth));
    Json* at = add(std::move(value));
    if (at == nullptr) return false;
    open_.push_back({at, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  // Containers from the root inwards; one grows only while its last element is closed, so pointers stay valid.
  std::vector<Container> open_;
  Json* member_ = nullptr;  // where the value of the key just read goes
  size_t values_ = 0;
  std::string error_;
};

}  // namespace

ApiResult<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return ApiError{
        413, fmt::format("the body has {} bytes; at most {} are allowed", text.size(), limits.max_bytes), "",
        ""};
  Builder builder(limits);
  if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  return bad_field("", "invalid_json", "the body is not valid JSON: {}", builder.error());
}

ApiResult<Json> parse_json_object(std::string_view text, const JsonLimits& limits) {
  if (text.empty()) return bad_field("", "invalid_json", "the body is empty; a JSON object is expected");
  QUIRE_TRY(Json document, parse_json(text, limits));
  if (!document.is_object())
    return bad_field("", "invalid_json", "the body must be a JSON object, not {}", json_kind(document));
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
