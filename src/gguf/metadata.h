// The metadata of a GGUF file: typed key/value records, kept where they lie in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "gguf/name_index.h"

namespace quire::gguf {

// Numbered as in the file.
enum class ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
inline constexpr uint32_t kValueTypes = 13;

std::string_view value_type_name(ValueType t);  // "u8", "f32", "string", "array"
int value_type_bytes(ValueType t);              // bytes of one number or bool; 0 for strings and arrays
bool is_integer(ValueType t);                   // bool is not one
bool is_float(ValueType t);

// One value, or one array of values. `payload` holds the numbers back to back, little-endian and unaligned;
// `strings` holds the text of a string (one entry) or of a string array. All of it points into the file's
// bytes.
struct Value {
  ValueType type = ValueType::kUint8;  // of the elements
  bool is_array = false;
  int64_t count = 1;
  const std::byte* payload = nullptr;
  std::vector<std::string_view> strings;

  // Element i as a number; 0 <= i < count. as_int gives integers of any type and bools (0 or 1); a u64 comes
  // as its two's complement bits. as_double gives floats.
  int64_t as_int(int64_t i) const;
  double as_double(int64_t i) const;
  std::string type_name() const;  // "u32", "array of string"
};

// The key/value records of one file, in file order, with typed look-up. Every getter of an absent key, of a
// value of another type, or out of the range of the wanted type returns a Fault::kModelFile error that names
// the key; the `_or` forms return the default for an absent key only. Integer getters accept any integer
// type, float getters f32 or f64 (finite values only).
class Metadata {
 public:
  struct Entry {
    std::string_view key;
    Value value;
  };

  // Fails on a duplicate key.
  static Result<Metadata> make(std::vector<Entry> entries);

  std::span<const Entry> entries() const { return entries_; }
  const Value* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  Result<uint32_t> get_u32(std::string_view key) const;
  Result<int32_t> get_i32(std::string_view key) const;
  Result<uint64_t> get_u64(std::string_view key) const;
  Result<int64_t> get_i64(std::string_view key) const;
  Result<float> get_f32(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;

  Result<uint32_t> get_u32_or(std::string_view key, uint32_t absent) const;
  Result<int32_t> get_i32_or(std::string_view key, int32_t absent) const;
  Result<float> get_f32_or(std::string_view key, float absent) const;
  Result<bool> get_bool_or(std::string_view key, bool absent) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view absent) const;

  // Arrays. Strings stay in the file, valid as long as the file is open; numbers are converted.
  Result<std::span<const std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<int32_t>> get_i32_array(std::string_view key) const;
  Result<std::vector<uint32_t>> get_u32_array(std::string_view key) const;
  Result<std::vector<float>> get_f32_array(std::string_view key) const;
  Result<std::vector<bool>> get_bool_array(std::string_view key) const;

  // For keys that may be one value for all layers or one value per layer: a scalar (repeated) or an array of
  // exactly n.
  Result<std::vector<uint32_t>> get_u32_per_layer(std::string_view key, int64_t n) const;
  Result<std::vector<int32_t>> get_i32_per_layer(std::string_view key, int64_t n) const;
  Result<std::vector<float>> get_f32_per_layer(std::string_view key, int64_t n) const;
  Result<std::vector<bool>> get_bool_per_layer(std::string_view key, int64_t n) const;

 private:
  std::vector<Entry> entries_;
  NameIndex by_key_;
};

// Text of a file as it may be shown in a message: at most 80 bytes, control and non-ASCII bytes as \xNN, in
// quotes.
std::string printable(std::string_view text);

}  // namespace quire::gguf
