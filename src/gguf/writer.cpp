#include "gguf/writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "gguf/name_index.h"
#include "gguf/shard.h"

namespace quire::gguf {
namespace {

uint64_t round_up(uint64_t x, uint64_t alignment) {
  return (x + alignment - 1) / alignment * alignment;
}

template <class T>
void append(std::string& out, T x) {
  out.append(reinterpret_cast<const char*>(&x), sizeof x);
}
void append_string(std::string& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  out += text;
}

Status check_shape(std::string_view name, const DTypeInfo& type, std::span<const int64_t> dims) {
  if (dims.empty() || dims.size() > kMaxDims)
    return request_error("tensor {} has {} dimensions; 1 to {} can be written", printable(name), dims.size(), kMaxDims);
  int64_t bytes = type.block_bytes;
  for (const int64_t d : dims)
    if (d < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes))
      return request_error("tensor {} has an impossible dimension {}", printable(name), d);
  if (dims[0] % type.block_elems != 0)
    return request_error("tensor {} has rows of {} elements, not a multiple of the {} block size {}", printable(name),
                         dims[0], type.name, type.block_elems);
  return {};
}

}  // namespace

Writer::Writer(uint32_t alignment) : alignment_(alignment) {
  QUIRE_CHECK(std::has_single_bit(alignment) && alignment >= kMinAlignment && alignment <= kMaxAlignment,
              "alignment {}", alignment);
  if (alignment != kDefaultAlignment) add("general.alignment", alignment);
}

void Writer::put(const void* data, size_t size) {
  entries_.append(static_cast<const char*>(data), size);
}
void Writer::put_string(std::string_view text) {
  append_string(entries_, text);
}

void Writer::begin_entry(std::string_view key, ValueType type) {
  QUIRE_CHECK(!file_, "metadata {} added after open()", key);
  keys_.emplace_back(key);
  put_string(key);
  put_number(static_cast<uint32_t>(type));
}

void Writer::begin_array(std::string_view key, ValueType type, uint64_t count) {
  begin_entry(key, ValueType::kArray);
  put_number(static_cast<uint32_t>(type));
  put_number(count);
}

void Writer::add_string(std::string_view key, std::string_view text) {
  begin_entry(key, ValueType::kString);
  put_string(text);
}

void Writer::add_strings(std::string_view key, std::span<const std::string_view> texts) {
  begin_array(key, ValueType::kString, texts.size());
  for (const std::string_view t : texts) put_string(t);
}

void Writer::add_bools(std::string_view key, const std::vector<bool>& values) {
  begin_array(key, ValueType::kBool, values.size());
  for (const bool b : values) put_number(static_cast<uint8_t>(b));
}

void Writer::add_value(std::string_view key, const Value& value) {
  if (value.is_array)
    begin_array(key, value.type, static_cast<uint64_t>(value.count));
  else
    begin_entry(key, value.type);
  if (value.type == ValueType::kString)
    for (const std::string_view t : value.strings) put_string(t);
  else
    put(value.payload, static_cast<size_t>(value.count * value_type_bytes(value.type)));
}

Status Writer::add_tensor(std::string_view name, DType dtype, std::span<const int64_t> dims) {
  QUIRE_CHECK(!file_, "tensor {} declared after open()", name);
  if (name.empty() || name.size() > kMaxTensorName || name.find('\0') != name.npos)
    return request_error("{} cannot be a tensor name: 1 to {} bytes without NUL", printable(name), kMaxTensorName);
  if (is_memory_type(dtype))
    return request_error("tensor {} is of type {}, which GGUF does not have", printable(name), dtype_name(dtype));
  QUIRE_CHECKED(check_shape(name, dtype_info(dtype), dims));
  Tensor t{std::string(name), dtype, {dims.begin(), dims.end()}, data_bytes_, 0};
  int64_t elems = 1;
  for (const int64_t d : dims) elems *= d;
  t.bytes = static_cast<uint64_t>(dtype_bytes(dtype, elems));
  uint64_t end = 0;
  if (t.bytes > INT64_MAX - kMaxAlignment || __builtin_add_overflow(data_bytes_, round_up(t.bytes, alignment_), &end) ||
      end > static_cast<uint64_t>(INT64_MAX) / 2)
    return request_error("tensor {} makes the file larger than 2^62 bytes", printable(name));
  data_bytes_ = end;
  tensors_.push_back(std::move(t));
  return {};
}

std::string Writer::header() const {
  std::string out = "GGUF";
  append(out, uint32_t{3});
  append(out, static_cast<uint64_t>(tensors_.size()));
  append(out, static_cast<uint64_t>(keys_.size()));
  out += entries_;
  for (const Tensor& t : tensors_) {
    append_string(out, t.name);
    append(out, static_cast<uint32_t>(t.dims.size()));
    for (const int64_t d : t.dims) append(out, d);
    append(out, static_cast<uint32_t>(t.dtype));
    append(out, t.offset);
  }
  if (!tensors_.empty()) out.resize(round_up(out.size(), alignment_));
  return out;
}

uint64_t Writer::file_bytes() const {
  return header().size() + data_bytes_;
}

Status Writer::check_names() const {
  for (const std::string& k : keys_)
    if (k.empty() || k.size() > kMaxKey)
      return request_error("{} cannot be a metadata key: 1 to {} bytes", printable(k), kMaxKey);
  const NameIndex by_key(keys_, [](const std::string& k) { return std::string_view(k); });
  if (const auto i = by_key.duplicate()) return request_error("metadata key {} is added twice", printable(keys_[*i]));
  const NameIndex by_name(tensors_, [](const Tensor& t) { return std::string_view(t.name); });
  if (const auto i = by_name.duplicate())
    return request_error("tensor {} is declared twice", printable(tensors_[*i].name));
  return {};
}

Result<std::string> Writer::head() const {
  QUIRE_CHECKED(check_names());
  return header();
}

Status Writer::open(const std::string& path) {
  QUIRE_CHECK(!file_ && written_ == 0, "open() called twice");
  QUIRE_CHECKED(check_names());
  QUIRE_TRY(AtomicFile file, AtomicFile::create(path, file_bytes()));
  file_.emplace(std::move(file));
  const std::string bytes = header();
  return write_bytes(bytes.data(), bytes.size());
}

Status Writer::write_bytes(const void* data, uint64_t size) {
  written_ += size;
  return file_->write(data, size);
}

Status Writer::write_padding() {
  const std::string zeros(round_up(written_, alignment_) - written_, '\0');
  return write_bytes(zeros.data(), zeros.size());
}

Status Writer::write_tensor(std::span<const std::byte> bytes) {
  QUIRE_CHECK(file_, "write_tensor() without a successful open()");
  QUIRE_CHECK(next_tensor_ < tensors_.size(), "more payloads than tensors");
  const Tensor& t = tensors_[next_tensor_];
  QUIRE_CHECK(bytes.size() == t.bytes, "tensor {} has {} bytes, but {} were given", t.name, t.bytes, bytes.size());
  ++next_tensor_;
  QUIRE_CHECKED(write_bytes(bytes.data(), bytes.size()));
  return write_padding();
}

Status Writer::finish() {
  QUIRE_CHECK(file_, "finish() without a successful open()");
  QUIRE_CHECK(next_tensor_ == tensors_.size(), "{} of {} tensors written", next_tensor_, tensors_.size());
  return file_->commit();
}

uint32_t file_type_code(DType mostly) {
  switch (mostly) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ8_0:
      return 7;
    case DType::kQ5_0:
      return 8;
    case DType::kQ5_1:
      return 9;
    case DType::kQ3_K:
      return 12;
    case DType::kQ4_K:
      return 15;
    case DType::kQ5_K:
      return 17;
    case DType::kQ6_K:
      return 18;
    case DType::kIQ4_NL:
      return 25;
    case DType::kBF16:
      return 32;
    case DType::kMXFP4:
      return 38;
    case DType::kNVFP4:
      return 39;
    default:
      return 1024;  // guessed: readers must look at the tensors
  }
}

}  // namespace quire::gguf
