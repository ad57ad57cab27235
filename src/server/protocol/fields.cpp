#include "server/protocol/fields.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>

#include "gguf/metadata.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

constexpr size_t kMaxShownKey = 64;

// A number without a fraction that fits int64: 5 and 5.0, as JavaScript clients may write either.
std::optional<int64_t> as_integer(const Json& v) {
  if (v.is_number_unsigned()) {
    const auto x = v.get<uint64_t>();
    if (x > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(x);
  }
  if (v.is_number_integer()) return v.get<int64_t>();
  if (!v.is_number_float()) return std::nullopt;
  const auto x = v.get<double>();
  constexpr double kLimit = 9007199254740992.0;  // 2^53: beyond it not every integer is a float64
  if (!(std::abs(x) <= kLimit) || x != std::floor(x)) return std::nullopt;
  return static_cast<int64_t>(x);
}

std::string shortened(std::string_view key) {
  return key.size() <= kMaxShownKey ? std::string(key) : std::string(key.substr(0, kMaxShownKey)) + "...";
}

}  // namespace

Json* Fields::take(std::string_view name) {
  known_.push_back(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

Json* Fields::take_object(std::string_view name) {
  Json* v = take(name);
  if (v == nullptr || v->is_object()) return v;
  wrong_type(name, "an object", *v);
  return nullptr;
}

void Fields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void Fields::wrong_type(std::string_view name, std::string_view expected, const Json& found) {
  const std::string full = qualified(name);
  fail(bad_field(full, "invalid_type", "'{}' must be {}, not {}", full, expected, json_kind(found)));
}

void Fields::boolean(std::string_view name, bool& out) {
  const Json* v = take(name);
  if (v == nullptr || failed()) return;
  if (!v->is_boolean()) return wrong_type(name, "true or false", *v);
  out = v->get<bool>();
}

std::optional<int64_t> Fields::integral(std::string_view name, int64_t low, int64_t high) {
  const Json* v = take(name);
  if (v == nullptr || failed()) return std::nullopt;
  if (!v->is_number()) {
    wrong_type(name, "an integer", *v);
    return std::nullopt;
  }
  const std::optional<int64_t> x = as_integer(*v);
  const std::string full = qualified(name);
  if (!x) {
    fail(bad_field(full, "invalid_type", "'{}' is {}: must be an integer", full, dump(*v)));
    return std::nullopt;
  }
  if (*x < low || *x > high) {
    if (high == std::numeric_limits<int64_t>::max() || high == std::numeric_limits<int32_t>::max())
      fail(bad_field(full, "invalid_value", "'{}' is {}: must be at least {}", full, *x, low));
    else
      fail(bad_field(full, "invalid_value", "'{}' is {}: must be between {} and {}", full, *x, low, high));
    return std::nullopt;
  }
  return x;
}

void Fields::integer(std::string_view name, int64_t& out, int64_t low, int64_t high) {
  if (const auto x = integral(name, low, high)) out = *x;
}

void Fields::integer(std::string_view name, int& out, int low, int high) {
  if (const auto x = integral(name, low, high)) out = static_cast<int>(*x);
}

void Fields::integer(std::string_view name, std::optional<int64_t>& out, int64_t low, int64_t high) {
  if (const auto x = integral(name, low, high)) out = x;
}

void Fields::bits(std::string_view name, std::optional<uint64_t>& out) {
  const Json* v = take(name);
  if (v == nullptr || failed()) return;
  if (!v->is_number()) return wrong_type(name, "an integer", *v);
  if (v->is_number_unsigned()) {
    out = v->get<uint64_t>();
    return;
  }
  const std::optional<int64_t> x = as_integer(*v);
  const std::string full = qualified(name);
  if (!x) return fail(bad_field(full, "invalid_type", "'{}' is {}: must be an integer of 64 bits", full, dump(*v)));
  out = static_cast<uint64_t>(*x);
}

const Json* Fields::list(std::string_view name, std::string_view expected, size_t max_count) {
  const Json* v = take(name);
  if (v == nullptr || failed()) return nullptr;
  if (!v->is_array()) {
    wrong_type(name, expected, *v);
    return nullptr;
  }
  if (v->size() <= max_count) return v;
  const std::string full = qualified(name);
  fail(bad_field(full, "invalid_value", "'{}' has {} entries; at most {} are allowed", full, v->size(), max_count));
  return nullptr;
}

void Fields::integers(std::string_view name, std::vector<int64_t>& out, size_t max_count, int64_t low, int64_t high) {
  const Json* v = list(name, "an array of integers", max_count);
  if (v == nullptr) return;
  const std::string full = qualified(name);
  for (const Json& item : *v) {
    const std::optional<int64_t> x = item.is_number() ? as_integer(item) : std::nullopt;
    if (!x) return fail(bad_field(full, "invalid_type", "'{}' must hold integers, not {}", full, json_kind(item)));
    if (*x < low || *x > high)
      return fail(bad_field(full, "invalid_value", "'{}' holds {}: must be between {} and {}", full, *x, low, high));
    out.push_back(*x);
  }
}

void Fields::number(std::string_view name, float& out, float low, float high) {
  const Json* v = take(name);
  if (v == nullptr || failed()) return;
  if (!v->is_number()) return wrong_type(name, "a number", *v);
  const auto x = v->get<double>();
  if (!(x >= low && x <= high)) {
    const std::string full = qualified(name);
    return fail(bad_field(full, "invalid_value", "'{}' is {}: must be between {} and {}", full, dump(*v), low, high));
  }
  out = static_cast<float>(x);
}

void Fields::text(std::string_view name, std::string& out, size_t max_bytes) {
  Json* v = take(name);
  if (v == nullptr || failed()) return;
  if (!v->is_string()) return wrong_type(name, "a string", *v);
  auto& s = v->get_ref<std::string&>();
  if (s.size() > max_bytes) {
    const std::string full = qualified(name);
    return fail(
        bad_field(full, "invalid_value", "'{}' has {} bytes; at most {} are allowed", full, s.size(), max_bytes));
  }
  out = std::move(s);
}

void Fields::texts(std::string_view name, std::vector<std::string>& out, size_t max_count, size_t max_bytes) {
  const Json* v = take(name);
  if (v == nullptr || failed()) return;
  const std::string full = qualified(name);
  const auto add = [&](const Json& item) {
    if (!item.is_string()) return wrong_type(name, "a string or an array of strings", item.is_array() ? item : *v);
    const auto& s = item.get_ref<const std::string&>();
    if (s.empty()) return fail(bad_field(full, "invalid_value", "'{}' holds an empty string", full));
    if (s.size() > max_bytes)
      return fail(bad_field(full, "invalid_value", "'{}' holds a string of {} bytes; at most {} are allowed", full,
                            s.size(), max_bytes));
    out.push_back(s);
  };
  if (!v->is_array()) return add(*v);
  if (v->size() > max_count)
    return fail(
        bad_field(full, "invalid_value", "'{}' has {} entries; at most {} are allowed", full, v->size(), max_count));
  for (const Json& item : *v) {
    if (!item.is_string()) {
      return fail(bad_field(full, "invalid_type", "'{}' must hold strings, not {}", full, json_kind(item)));
    }
    add(item);
  }
}

void Fields::tokens(std::string_view name, std::vector<TokenId>& out, size_t max_count, int64_t vocab) {
  const Json* v = list(name, "an array of token ids", max_count);
  if (v == nullptr) return;
  const std::string full = qualified(name);
  for (const Json& item : *v) {
    const std::optional<int64_t> x = item.is_number() ? as_integer(item) : std::nullopt;
    if (!x) return fail(bad_field(full, "invalid_type", "'{}' must hold token ids, not {}", full, json_kind(item)));
    if (*x < 0 || *x >= vocab)
      return fail(
          bad_field(full, "invalid_value", "'{}' holds {}; the vocabulary has the ids 0 to {}", full, *x, vocab - 1));
    out.push_back(static_cast<TokenId>(*x));
  }
}

void Fields::refuse(std::string_view name, std::string_view why, std::initializer_list<Json> neutral) {
  const Json* v = take(name);
  if (v == nullptr || failed()) return;
  if (std::find(neutral.begin(), neutral.end(), *v) != neutral.end()) return;
  const std::string full = qualified(name);
  fail(bad_field(full, "unsupported_parameter", "'{}' is not supported: {}", full, why));
}

void Fields::unserved(std::string_view name, std::string_view why, std::initializer_list<Json> neutral) {
  if (ignored_.strict) return refuse(name, why, neutral);
  const Json* v = take(name);
  if (v != nullptr && std::find(neutral.begin(), neutral.end(), *v) == neutral.end()) note_ignored(name);
}

void Fields::note_ignored(std::string_view name) {
  if (ignored_.count++ < IgnoredFields::kMostNames) ignored_.names.push_back(qualified(shortened(name)));
}

ApiStatus Fields::finish() {
  if (error_) return *error_;
  std::sort(known_.begin(), known_.end());
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || std::binary_search(known_.begin(), known_.end(), key)) continue;
    if (!ignored_.strict) {
      note_ignored(key);
      continue;
    }
    const std::string full = qualified(shortened(key));
    return bad_field(unicode::replace_invalid(full), "unknown_parameter", "unknown parameter {}",
                     gguf::printable(full));
  }
  return {};
}

namespace {

// `plain`: what stands for itself, beside letters and digits.
std::string header_list(const std::vector<std::string>& names, size_t count, const char* plain) {
  std::string list;
  for (const std::string& name : names) {
    if (!list.empty()) list += ", ";
    for (const char c : name) {
      if (std::isalnum(static_cast<unsigned char>(c)) != 0 || (c != '\0' && std::strchr(plain, c) != nullptr))
        list += c;
      else
        list += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  if (count > names.size()) list += ", ...";
  return list;
}

}  // namespace

std::string IgnoredFields::header() const {
  return header_list(names, count, "_-.[]");
}

std::string IgnoredFields::left_out_header() const {
  return header_list(left_out, left_out_count, "_-.[]:");
}

void IgnoredFields::note_left_out(std::string_view where, std::string_view kind) {
  if (left_out_count++ < kMostNames) left_out.push_back(fmt::format("{}:{}", where, kind));
  ++left_out_kinds[std::string(kind)];
}

}  // namespace quire::server
