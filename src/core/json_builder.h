// A JSON document from a parser's events, for JSON that comes from strangers: depth and number of values are limited,
// and an object that names a key twice is refused rather than read one way or the other.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace quire {

struct JsonBuilderLimits {
  size_t max_depth = 64;
  size_t max_values = SIZE_MAX;  // of every kind, keys not counted
  size_t max_blocks = SIZE_MAX;  // strings, arrays, objects and members: each has memory of its own
};

// Empties a document from within, without any memory. The destructor of nlohmann::basic_json makes a list of what it
// has yet to destroy, and ends the program where there is no memory for that; of an empty array or object it makes
// none. Calls itself for each level: only for documents of limited depth.
template <class Json>
void dismantle(Json& value) noexcept {
  if (value.is_array()) {
    auto& items = value.template get_ref<typename Json::array_t&>();
    for (Json& item : items) dismantle(item);
    items.clear();
  } else if (value.is_object()) {
    auto& members = value.template get_ref<typename Json::object_t&>();
    for (auto& member : members) dismantle(member.second);
    members.clear();
  }
}

// What the parser could not read of a token: "syntax error at byte 17 near '}'". `shown` makes text fit for a message.
using ShowText = std::string (*)(std::string_view text);
inline std::string syntax_complaint(size_t position, std::string_view last_token, ShowText shown,
                                    std::string_view what = "syntax error") {
  constexpr size_t kShown = 40;  // the end of the token: that is where the parser stopped
  if (last_token.size() > kShown) last_token.remove_prefix(last_token.size() - kShown);
  return fmt::format("{} at byte {} near {}", what, position, shown(last_token));
}

// Json is nlohmann::json or ordered_json; Hash a hash of texts whose buckets nobody can aim at, used for objects that
// keep the order of their keys. For Json::sax_parse; every handler returns false to stop, and error() then says why.
template <class Json, class Hash>
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  JsonBuilder(const JsonBuilderLimits& limits, ShowText shown) : limits_(limits), shown_(shown) {}
  ~JsonBuilder() override { dismantle(root_); }
  JsonBuilder(const JsonBuilder&) = delete;
  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool x) override { return add(x) != nullptr; }
  bool number_integer(int64_t x) override { return add(x) != nullptr; }
  bool number_unsigned(uint64_t x) override { return add(x) != nullptr; }
  bool number_float(double x, const std::string&) override { return add(x) != nullptr; }
  bool string(std::string& x) override { return count_block() && add(std::move(x)) != nullptr; }
  bool binary(typename Json::binary_t&) override { return fail("binary data"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    if (!count_block()) return false;
    Container& c = open_.back();
    auto& object = c.value->template get_ref<Object&>();
    if constexpr (kSorted) {
      const auto [at, fresh] = object.try_emplace(name);
      member_ = fresh ? &at->second : nullptr;
    } else if (seen(c, object, name)) {
      member_ = nullptr;
    } else {
      make_room(object);
      object.emplace_back(name, nullptr);  // not emplace(): that would search once more
      member_ = &object.back().second;
    }
    return member_ != nullptr || fail(fmt::format("key {} occurs twice in one object", shown_(name)));
  }

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::detail::exception& e) override {
    const bool overflow = e.id == 406;  // nlohmann-json's out_of_range.406: a number beyond float64
    return fail(syntax_complaint(position, last_token, shown_, overflow ? "a number out of range" : "syntax error"));
  }

 private:
  using Object = typename Json::object_t;
  static constexpr bool kSorted = requires(Object o, std::string s) { o.try_emplace(s); };

  struct Container {
    Json* value;
    std::unordered_set<std::string, Hash> keys;  // of an object with many members
  };
  static constexpr size_t kFewMembers = 16;

  // Whether the object has this key, in constant time however many it has.
  static bool seen(Container& c, const Object& object, const std::string& name) {
    if (object.size() < kFewMembers) {
      for (const auto& [key, value] : object)
        if (key == name) return true;
      return false;
    }
    if (c.keys.empty())
      for (const auto& [key, value] : object) c.keys.insert(key);
    return !c.keys.insert(name).second;
  }
  // A vector of members that grows copies them, values and all, because their keys are constant: this moves the values.
  static void make_room(Object& object) {
    using Members = typename Object::Container;
    if (object.size() < object.capacity()) return;
    Members more;
    more.reserve(std::max<size_t>(2, 2 * object.size()));
    // A copy of a key may find no memory: values are moved when all keys are there.
    for (const auto& [key, value] : object) more.emplace_back(key, nullptr);
    auto& members = static_cast<Members&>(object);
    for (size_t i = 0; i < more.size(); ++i) more[i].second = std::move(members[i].second);
    members.swap(more);
  }
  bool count_block() {
    return ++blocks_ <= limits_.max_blocks ||
           fail(fmt::format("more than {} strings, arrays, objects and members", limits_.max_blocks));
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
      at = parent.is_array() ? &parent.template get_ref<typename Json::array_t&>().emplace_back() : member_;
    }
    *at = std::move(value);
    return at;
  }
  bool open(Json value) {
    if (open_.size() == limits_.max_depth)
      return fail(fmt::format("nested more than {} levels deep", limits_.max_depth));
    if (!count_block()) return false;
    Json* at = add(std::move(value));
    if (at == nullptr) return false;
    open_.push_back({at, {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonBuilderLimits limits_;
  const ShowText shown_;
  Json root_;
  // Containers from the root inwards; one grows only while its last element is closed, so pointers stay valid.
  std::vector<Container> open_;
  Json* member_ = nullptr;  // where the value of the key just read goes
  size_t values_ = 0, blocks_ = 0;
  std::string error_;
};

}  // namespace quire
