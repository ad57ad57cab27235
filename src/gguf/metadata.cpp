#include "gguf/metadata.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace quire::gguf {
namespace {

struct TypeRow {
  std::string_view name;
  int bytes;
};
constexpr TypeRow kTypes[kValueTypes] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

template <class T>
T load(const std::byte* at, int64_t i) {
  T x;
  std::memcpy(&x, at + i * static_cast<int64_t>(sizeof x), sizeof x);
  return x;
}

constexpr auto kKeyOf = [](const Metadata::Entry& e) { return e.key; };

Error wrong_type(std::string_view key, const Value& v, std::string_view wanted) {
  return file_error("metadata key {} is {}, but {} is needed", printable(key), v.type_name(), wanted);
}

// How an element of a value becomes a T: the check of its type and of its range.
template <class T>
struct Convert;

template <class T>
requires std::is_integral_v<T>
struct Convert<T> {
  static constexpr std::string_view kWanted = "an integer";
  static bool accepts(ValueType t) { return is_integer(t); }
  static Result<T> element(std::string_view key, const Value& v, int64_t i) {
    const int64_t x = v.as_int(i);
    const bool above_int64 = v.type == ValueType::kUint64 && x < 0;  // u64 of 2^63 or more
    const bool fits = above_int64 ? std::is_same_v<T, uint64_t> : std::in_range<T>(x);
    if (fits) return static_cast<T>(x);
    const std::string shown = above_int64 ? std::to_string(static_cast<uint64_t>(x)) : std::to_string(x);
    return file_error("metadata key {} is {}, outside the range {} to {}", printable(key), shown,
                      std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  }
};

template <>
struct Convert<float> {
  static constexpr std::string_view kWanted = "a floating-point number";
  static bool accepts(ValueType t) { return is_float(t); }
  static Result<float> element(std::string_view key, const Value& v, int64_t i) {
    const double x = v.as_double(i);
    if (std::isfinite(x) && std::abs(x) <= std::numeric_limits<float>::max()) return static_cast<float>(x);
    return file_error("metadata key {} is {}, but a finite 32-bit number is needed", printable(key), x);
  }
};

template <>
struct Convert<bool> {
  static constexpr std::string_view kWanted = "a bool";
  static bool accepts(ValueType t) { return t == ValueType::kBool; }
  static Result<bool> element(std::string_view, const Value& v, int64_t i) { return v.as_int(i) != 0; }
};

Result<const Value*> need(const Metadata& m, std::string_view key) {
  if (const Value* v = m.find(key)) return v;
  return file_error("metadata key {} is missing", printable(key));
}

template <class T>
Result<T> scalar(const Metadata& m, std::string_view key) {
  QUIRE_TRY(const Value* v, need(m, key));
  if (v->is_array || !Convert<T>::accepts(v->type)) return wrong_type(key, *v, Convert<T>::kWanted);
  return Convert<T>::element(key, *v, 0);
}

template <class T>
Result<T> scalar_or(const Metadata& m, std::string_view key, T absent) {
  if (!m.has(key)) return absent;
  return scalar<T>(m, key);
}

template <class T>
Result<std::vector<T>> elements(std::string_view key, const Value& v) {
  if (!Convert<T>::accepts(v.type))
    return wrong_type(key, v, fmt::format("{} (or an array of them)", Convert<T>::kWanted));
  std::vector<T> out(static_cast<size_t>(v.count));
  for (int64_t i = 0; i < v.count; ++i) {
    QUIRE_TRY(out[static_cast<size_t>(i)], Convert<T>::element(key, v, i));
  }
  return out;
}

template <class T>
Result<std::vector<T>> array(const Metadata& m, std::string_view key) {
  QUIRE_TRY(const Value* v, need(m, key));
  if (!v->is_array) return wrong_type(key, *v, "an array");
  return elements<T>(key, *v);
}

template <class T>
Result<std::vector<T>> per_layer(const Metadata& m, std::string_view key, int64_t n) {
  QUIRE_TRY(const Value* v, need(m, key));
  if (v->is_array && v->count != n)
    return file_error("metadata key {} has {} values, but the model has {} layers", printable(key), v->count, n);
  QUIRE_TRY(std::vector<T> out, elements<T>(key, *v));
  if (!v->is_array) out.resize(static_cast<size_t>(n), out[0]);
  return out;
}

}  // namespace

std::string_view value_type_name(ValueType t) {
  return kTypes[static_cast<size_t>(t)].name;
}
int value_type_bytes(ValueType t) {
  return kTypes[static_cast<size_t>(t)].bytes;
}

bool is_float(ValueType t) {
  return t == ValueType::kFloat32 || t == ValueType::kFloat64;
}
bool is_integer(ValueType t) {
  return value_type_bytes(t) != 0 && !is_float(t) && t != ValueType::kBool;
}

int64_t Value::as_int(int64_t i) const {
  switch (type) {
    case ValueType::kUint8:
      return load<uint8_t>(payload, i);
    case ValueType::kInt8:
      return load<int8_t>(payload, i);
    case ValueType::kUint16:
      return load<uint16_t>(payload, i);
    case ValueType::kInt16:
      return load<int16_t>(payload, i);
    case ValueType::kUint32:
      return load<uint32_t>(payload, i);
    case ValueType::kInt32:
      return load<int32_t>(payload, i);
    case ValueType::kUint64:
    case ValueType::kInt64:
      return load<int64_t>(payload, i);
    case ValueType::kBool:
      return load<uint8_t>(payload, i) != 0;
    default:
      QUIRE_CHECK(false, "as_int of {}", type_name());
  }
}

double Value::as_double(int64_t i) const {
  QUIRE_CHECK(is_float(type), "as_double of {}", type_name());
  return type == ValueType::kFloat32 ? static_cast<double>(load<float>(payload, i)) : load<double>(payload, i);
}

std::string Value::type_name() const {
  return is_array ? fmt::format("array of {}", value_type_name(type)) : std::string(value_type_name(type));
}

Result<Metadata> Metadata::make(std::vector<Entry> entries) {
  Metadata m;
  m.entries_ = std::move(entries);
  m.by_key_ = NameIndex(m.entries_, kKeyOf);
  if (const auto twice = m.by_key_.duplicate())
    return file_error("metadata key {} ({}) occurs twice", *twice, printable(m.entries_[*twice].key));
  return m;
}

const Value* Metadata::find(std::string_view key) const {
  const auto i = by_key_.find(entries_, kKeyOf, key);
  return i ? &entries_[*i].value : nullptr;
}

Result<uint32_t> Metadata::get_u32(std::string_view key) const {
  return scalar<uint32_t>(*this, key);
}
Result<int32_t> Metadata::get_i32(std::string_view key) const {
  return scalar<int32_t>(*this, key);
}
Result<uint64_t> Metadata::get_u64(std::string_view key) const {
  return scalar<uint64_t>(*this, key);
}
Result<int64_t> Metadata::get_i64(std::string_view key) const {
  return scalar<int64_t>(*this, key);
}
Result<float> Metadata::get_f32(std::string_view key) const {
  return scalar<float>(*this, key);
}
Result<bool> Metadata::get_bool(std::string_view key) const {
  return scalar<bool>(*this, key);
}

Result<std::string_view> Metadata::get_string(std::string_view key) const {
  QUIRE_TRY(const Value* v, need(*this, key));
  if (v->is_array || v->type != ValueType::kString) return wrong_type(key, *v, "a string");
  return v->strings[0];
}

Result<uint32_t> Metadata::get_u32_or(std::string_view key, uint32_t absent) const {
  return scalar_or(*this, key, absent);
}
Result<int32_t> Metadata::get_i32_or(std::string_view key, int32_t absent) const {
  return scalar_or(*this, key, absent);
}
Result<float> Metadata::get_f32_or(std::string_view key, float absent) const {
  return scalar_or(*this, key, absent);
}
Result<bool> Metadata::get_bool_or(std::string_view key, bool absent) const {
  return scalar_or(*this, key, absent);
}
Result<std::string_view> Metadata::get_string_or(std::string_view key, std::string_view absent) const {
  if (!has(key)) return absent;
  return get_string(key);
}

Result<std::span<const std::string_view>> Metadata::get_strings(std::string_view key) const {
  QUIRE_TRY(const Value* v, need(*this, key));
  if (!v->is_array || v->type != ValueType::kString) return wrong_type(key, *v, "an array of strings");
  return std::span<const std::string_view>(v->strings);
}

Result<std::vector<int32_t>> Metadata::get_i32_array(std::string_view key) const {
  return array<int32_t>(*this, key);
}
Result<std::vector<uint32_t>> Metadata::get_u32_array(std::string_view key) const {
  return array<uint32_t>(*this, key);
}
Result<std::vector<float>> Metadata::get_f32_array(std::string_view key) const {
  return array<float>(*this, key);
}
Result<std::vector<bool>> Metadata::get_bool_array(std::string_view key) const {
  return array<bool>(*this, key);
}

Result<std::vector<uint32_t>> Metadata::get_u32_per_layer(std::string_view key, int64_t n) const {
  return per_layer<uint32_t>(*this, key, n);
}
Result<std::vector<int32_t>> Metadata::get_i32_per_layer(std::string_view key, int64_t n) const {
  return per_layer<int32_t>(*this, key, n);
}
Result<std::vector<float>> Metadata::get_f32_per_layer(std::string_view key, int64_t n) const {
  return per_layer<float>(*this, key, n);
}
Result<std::vector<bool>> Metadata::get_bool_per_layer(std::string_view key, int64_t n) const {
  return per_layer<bool>(*this, key, n);
}

std::string printable(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    if (c >= ' ' && c < 0x7f)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kShown ? "...'" : "'");
}

}  // namespace quire::gguf
