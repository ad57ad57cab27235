// Writing a GGUF file (version 3, little-endian), one tensor's payload at a time.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/atomic_file.h"
#include "core/dtype.h"
#include "core/result.h"
#include "gguf/metadata.h"

namespace quire::gguf {

// The C++ types that stand for GGUF's numbers, exactly: add("x.count", 3) would not say whether i32 or u32 is
// meant.
template <class T>
concept Number = std::same_as<T, uint8_t> || std::same_as<T, int8_t> || std::same_as<T, uint16_t> ||
    std::same_as<T, int16_t> || std::same_as<T, uint32_t> || std::same_as<T, int32_t> || std::same_as<T, float> ||
    std::same_as<T, bool> || std::same_as<T, uint64_t> || std::same_as<T, int64_t> || std::same_as<T, double>;

template <Number T>
constexpr ValueType value_type_of();

// Use: add metadata and declare tensors in any order, then open(), write_tensor() once per tensor in the
// order of declaration, finish(). The file is an AtomicFile: nothing ever appears under the final name unless
// it is complete. Keys and names that a reader would refuse (empty, too long, twice) are errors of open() or
// add_tensor().
class Writer {
 public:
  // `alignment` of every payload: a power of two from 8 to 1 MiB. Written into the file if it is not the
  // default.
  explicit Writer(uint32_t alignment = 32);
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  template <Number T>
  void add(std::string_view key, T value) {
    begin_entry(key, value_type_of<T>());
    put(&value, sizeof value);
  }
  template <Number T>
  void add_array(std::string_view key, std::span<const T> values) {
    begin_array(key, value_type_of<T>(), values.size());
    put(values.data(), values.size_bytes());
  }
  void add_string(std::string_view key, std::string_view text);
  void add_strings(std::string_view key, std::span<const std::string_view> texts);
  void add_bools(std::string_view key, const std::vector<bool>& values);
  // Copies a value read from another file.
  void add_value(std::string_view key, const Value& value);

  // dims in ne order (dims[0] contiguous, a multiple of the type's block), 1 to 4 of them, in elements.
  Status add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims);

  Status open(const std::string& path);
  // The payload of the next declared tensor; `bytes` must be exactly its size.
  Status write_tensor(std::span<const std::byte> bytes);
  Status finish();

  // The file up to the first payload, for a file that is laid out in memory. Everything must be declared.
  Result<std::string> head() const;
  // Size of the finished file, known once everything is declared.
  uint64_t file_bytes() const;

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> dims;
    uint64_t offset;
    uint64_t bytes;
  };

  void put(const void* data, size_t size);
  template <class T>
  void put_number(T x) {
    put(&x, sizeof x);
  }
  void put_string(std::string_view text);
  void begin_entry(std::string_view key, ValueType type);
  void begin_array(std::string_view key, ValueType type, uint64_t count);
  std::string header() const;
  Status check_names() const;
  Status write_bytes(const void* data, uint64_t size);
  Status write_padding();

  uint64_t alignment_;
  std::vector<std::string> keys_;
  std::string entries_;  // the metadata records, encoded
  std::vector<Tensor> tensors_;
  uint64_t data_bytes_ = 0;

  std::optional<AtomicFile> file_;  // between open() and finish()
  uint64_t written_ = 0;            // bytes of the file so far
  size_t next_tensor_ = 0;
};

// The informative code "mostly <type>" of general.file_type.
uint32_t file_type_code(DType mostly);

template <Number T>
constexpr ValueType value_type_of() {
  if constexpr (std::same_as<T, uint8_t>) return ValueType::kUint8;
  if constexpr (std::same_as<T, int8_t>) return ValueType::kInt8;
  if constexpr (std::same_as<T, uint16_t>) return ValueType::kUint16;
  if constexpr (std::same_as<T, int16_t>) return ValueType::kInt16;
  if constexpr (std::same_as<T, uint32_t>) return ValueType::kUint32;
  if constexpr (std::same_as<T, int32_t>) return ValueType::kInt32;
  if constexpr (std::same_as<T, float>) return ValueType::kFloat32;
  if constexpr (std::same_as<T, bool>) return ValueType::kBool;
  if constexpr (std::same_as<T, uint64_t>) return ValueType::kUint64;
  if constexpr (std::same_as<T, int64_t>) return ValueType::kInt64;
  if constexpr (std::same_as<T, double>) return ValueType::kFloat64;
}

}  // namespace quire::gguf
