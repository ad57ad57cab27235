// Typed look-up in config.json. Errors name the key. A key that is null counts as absent, as find_member has
// it.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "convert/json.h"

namespace quire::convert {

class HfKeys {
 public:
  // The object that the model class is made from: of wrapper classes `text_config`, which transformers reads
  // without a look at the level above it.
  explicit HfKeys(const nlohmann::json& model) : model_(model) {}

  const nlohmann::json* find(std::string_view key) const { return find_member(model_, key); }
  // Whether the key is there and null, which for some keys is another thing than a default.
  bool is_null(std::string_view key) const {
    const auto at = model_.find(key);
    return at != model_.end() && at->is_null();
  }
  Status number(std::string_view key, int64_t lo, int64_t hi, int64_t& out) const {
    if (find(key) == nullptr) return file_error("{}: missing", key);
    return number_or(key, 0, lo, hi, out);
  }
  Status number_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int64_t& out) const {
    const nlohmann::json* v = find(key);
    out = absent;
    if (v == nullptr) return {};
    if (!v->is_number_integer()) return file_error("{}: is not a whole number", key);
    // An unsigned number above 2^63 comes out negative.
    out = v->get<int64_t>();
    if (out < lo || out > hi) return file_error("{}: {} is not between {} and {}", key, v->dump(), lo, hi);
    return {};
  }
  Status flag_or(std::string_view key, bool absent, bool& out) const {
    const nlohmann::json* v = find(key);
    out = absent;
    if (v == nullptr) return {};
    if (!v->is_boolean()) return file_error("{}: is not true or false", key);
    out = v->get<bool>();
    return {};
  }

 private:
  const nlohmann::json& model_;
};

// A number above 0 that float32 can hold.
inline Status positive_or(const nlohmann::json* v, std::string_view key, double absent, double& out) {
  out = absent;
  if (v == nullptr) return {};
  if (!v->is_number()) return file_error("{}: is not a number", key);
  out = v->get<double>();
  if (!(out > 0) || !std::isfinite(static_cast<float>(out)))
    return file_error("{}: {} is not a positive number", key, out);
  return {};
}

// Empty if absent.
inline Result<std::string> text_of(const nlohmann::json* v, std::string_view key) {
  if (v == nullptr) return std::string();
  if (!v->is_string()) return file_error("{}: is not a text", key);
  return v->get<std::string>();
}

}  // namespace quire::convert
