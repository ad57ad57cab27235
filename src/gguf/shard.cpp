#include "gguf/shard.h"

#include <algorithm>
#include <bit>

#include "gguf/cursor.h"

namespace quire::gguf {
namespace {

// The smallest possible records: a count that would need more bytes than the file has is rejected before any
// loop.
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;
constexpr uint64_t kMaxRecords = uint64_t{1} << 24;  // whatever the size of the file

struct Header {
  uint32_t version;
  uint64_t tensor_count;
  uint64_t entry_count;
};

Result<Header> take_header(Cursor& in) {
  QUIRE_TRY(const std::byte* magic, in.take_bytes("the magic number", 4));
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    const std::string_view start(reinterpret_cast<const char*>(magic), 4);
    return file_error("not a GGUF file (it starts with {}); give a .gguf model file", printable(start));
  }
  QUIRE_TRY(const uint32_t version, in.take<uint32_t>("the version"));
  if (version != 0 && (version & 0xffff) == 0) return file_error("a big-endian GGUF file; convert it to little-endian");
  if (version == 1) return file_error("GGUF version 1 is obsolete; convert the model again (version 3)");
  if (version != 2 && version != 3) return file_error("GGUF version {} is unknown; versions 2 and 3 are read", version);
  QUIRE_TRY(const uint64_t tensors, in.take<uint64_t>("the tensor count"));
  QUIRE_TRY(const uint64_t entries, in.take<uint64_t>("the metadata count"));
  if (entries > std::min(kMaxRecords, in.remaining() / kMinEntryBytes))
    return file_error("the header claims {} metadata entries, more than fit into the file's {} bytes", entries,
                      in.position() + in.remaining());
  if (tensors > std::min(kMaxRecords, in.remaining() / kMinTensorBytes))
    return file_error("the header claims {} tensors, more than fit into the file's {} bytes", tensors,
                      in.position() + in.remaining());
  return Header{version, tensors, entries};
}

Result<ValueType> take_value_type(Cursor& in, std::string_view field) {
  QUIRE_TRY(const uint32_t id, in.take<uint32_t>(field));
  if (id >= kValueTypes) return file_error("{} is {}, which does not exist; the file is damaged or too new", field, id);
  return static_cast<ValueType>(id);
}

// `count` values of one type, back to back.
Result<Value> take_elements(Cursor& in, ValueType type, uint64_t count) {
  Value v;
  v.type = type;
  v.count = static_cast<int64_t>(count);
  if (type != ValueType::kString) {
    // No overflow: count <= 2^30 and elements have at most 8 bytes.
    QUIRE_TRY(v.payload, in.take_bytes("the value", count * static_cast<uint64_t>(value_type_bytes(type))));
    return v;
  }
  if (count > 1 && count > in.remaining() / 8)
    return file_error("an array of {} strings cannot fit into the {} bytes left in the file", count, in.remaining());
  for (uint64_t i = 0; i < count; ++i) {
    auto text = in.take_string("the string");
    if (!text.ok()) return count == 1 ? text.take_error() : text.take_error().context(fmt::format("element {}", i));
    v.strings.push_back(*text);
  }
  return v;
}

Result<Value> take_value(Cursor& in) {
  QUIRE_TRY(const ValueType type, take_value_type(in, "the value type"));
  if (type != ValueType::kArray) return take_elements(in, type, 1);
  QUIRE_TRY(const ValueType element, take_value_type(in, "the element type"));
  if (element == ValueType::kArray) return file_error("an array of arrays, which GGUF readers do not support");
  QUIRE_TRY(const uint64_t count, in.take<uint64_t>("the array length"));
  if (count > kMaxArrayElements)
    return file_error("the array claims {} elements (limit {}); the file is damaged", count, kMaxArrayElements);
  QUIRE_TRY(Value v, take_elements(in, element, count));
  v.is_array = true;
  return v;
}

Result<Metadata::Entry> take_entry(Cursor& in) {
  QUIRE_TRY(const std::string_view key, in.take_string("the key"));
  if (key.empty()) return file_error("the key is empty; the file is damaged");
  if (key.size() > kMaxKey) return file_error("the key is {} bytes long (limit {})", key.size(), kMaxKey);
  auto value = take_value(in);
  if (!value.ok()) return value.take_error().context(printable(key));
  return Metadata::Entry{key, std::move(*value)};
}

Result<Metadata> take_metadata(Cursor& in, uint64_t count) {
  std::vector<Metadata::Entry> entries;  // grows as records are really read
  for (uint64_t i = 0; i < count; ++i) {
    auto entry = take_entry(in);
    if (!entry.ok()) return entry.take_error().context(fmt::format("metadata entry {}", i));
    entries.push_back(std::move(*entry));
  }
  return Metadata::make(std::move(entries));
}

Result<uint64_t> alignment_of(const Metadata& m) {
  const Value* v = m.find("general.alignment");
  if (v == nullptr) return uint64_t{kDefaultAlignment};
  if (v->is_array || v->type != ValueType::kUint32)
    return file_error("general.alignment is {}, but must be u32", v->type_name());
  const uint64_t a = static_cast<uint64_t>(v->as_int(0));
  if (!std::has_single_bit(a) || a < kMinAlignment || a > kMaxAlignment)
    return file_error("general.alignment is {}, but must be a power of two from {} to {}", a, kMinAlignment,
                      kMaxAlignment);
  return a;
}

// Fills t.bytes from dtype and dims, every product checked. Dimensions of zero are legal (no bytes); they
// count as one in the check, so that later products of any of the dims cannot overflow either.
Status compute_size(TensorInfo& t) {
  const DTypeInfo& type = dtype_info(t.dtype);
  int64_t bound = 1;
  for (const int64_t d : t.dims)
    if (__builtin_mul_overflow(bound, std::max<int64_t>(d, 1), &bound))
      return file_error("its dimensions {} multiply to more than 2^63 elements", shape_text(t));
  if (t.dims[0] % type.block_elems != 0)
    return file_error("its rows have {} elements, not a multiple of the {} block size {}", t.dims[0], type.name,
                      type.block_elems);
  // Rounded up: a row's bytes must not overflow either, even if there is no row.
  if (__builtin_mul_overflow(bound / type.block_elems + 1, int64_t{type.block_bytes}, &bound))
    return file_error("its dimensions {} need more than 2^63 bytes", shape_text(t));
  t.bytes = dtype_bytes(t.dtype, t.elems());
  return {};
}

struct TensorRecord {
  TensorInfo info;
  uint64_t offset = 0;  // from the start of the data section
};

// Types that programs wrote once and no longer do.
struct RetiredType {
  uint32_t id;
  std::string_view name;
};
constexpr RetiredType kRetired[] = {{4, "q4_2"},      {5, "q4_3"},        {31, "q4_0_4_4"},   {32, "q4_0_4_8"},
                                    {33, "q4_0_8_8"}, {36, "iq4_nl_4_4"}, {37, "iq4_nl_4_8"}, {38, "iq4_nl_8_8"}};

Error unknown_type(uint32_t id) {
  for (const RetiredType& t : kRetired)
    if (t.id == id)
      return file_error("element type {} ({}) is retired; convert the model again with current tools", id, t.name);
  return file_error(
      "element type {} is unknown: another program's own, or newer than this one; take the model in another type", id);
}

Status take_tensor_rest(Cursor& in, TensorRecord& r) {
  TensorInfo& t = r.info;
  QUIRE_TRY(const uint32_t n_dims, in.take<uint32_t>("the number of dimensions"));
  if (n_dims > kMaxDims) return file_error("it has {} dimensions (limit {})", n_dims, kMaxDims);
  t.n_dims = static_cast<int>(n_dims);
  for (size_t i = 0; i < n_dims; ++i) {
    QUIRE_TRY(const uint64_t d, in.take<uint64_t>("a dimension"));
    if (d > static_cast<uint64_t>(INT64_MAX)) return file_error("dimension {} is {}, which is 2^63 or more", i, d);
    t.dims[i] = static_cast<int64_t>(d);
  }
  QUIRE_TRY(const uint32_t type, in.take<uint32_t>("the element type"));
  const auto known = find_dtype(type);
  if (!known) return unknown_type(type);
  t.dtype = known->type;
  QUIRE_TRY(r.offset, in.take<uint64_t>("the data offset"));
  return compute_size(t);
}

Result<TensorRecord> take_tensor(Cursor& in) {
  TensorRecord r;
  QUIRE_TRY(r.info.name, in.take_string("the name"));
  const std::string_view name = r.info.name;
  if (name.empty()) return file_error("its name is empty; the file is damaged");
  if (name.size() > kMaxTensorName)
    return file_error("its name is {} bytes long (limit {})", name.size(), kMaxTensorName);
  if (name.find('\0') != name.npos) return file_error("its name {} contains a NUL byte", printable(name));
  auto rest = take_tensor_rest(in, r);
  if (!rest.ok()) return rest.take_error().context(printable(name));
  return r;
}

// Turns offsets into pointers, after checking alignment and bounds.
Status place(TensorRecord& r, std::span<const std::byte> bytes, const Shard& shard) {
  if (r.offset % shard.alignment != 0)
    return file_error("its data offset {} is not a multiple of the alignment {}", r.offset, shard.alignment);
  const uint64_t available = bytes.size() - shard.data_begin;
  if (r.offset > available || static_cast<uint64_t>(r.info.bytes) > available - r.offset)
    return file_error(
        "its {} bytes at data offset {} reach past the end of the file ({} bytes of data); the file is truncated, "
        "copy it again",
        r.info.bytes, r.offset, available);
  r.info.data = bytes.data() + shard.data_begin + r.offset;
  return {};
}

Status check_overlap(const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& t : tensors)
    if (t.bytes > 0) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->data < b->data; });
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i - 1]->data + order[i - 1]->bytes > order[i]->data)
      return file_error("tensors {} and {} overlap; the file is damaged", printable(order[i - 1]->name),
                        printable(order[i]->name));
  return {};
}

std::string tensor_label(uint64_t i, std::string_view name) {
  return name.empty() ? fmt::format("tensor {}", i) : fmt::format("tensor {}: {}", i, printable(name));
}

}  // namespace

std::string shape_text(const TensorInfo& t) {
  std::string out = "[";
  for (int i = 0; i < t.n_dims; ++i) out += fmt::format("{}{}", i == 0 ? "" : ", ", t.dims[static_cast<size_t>(i)]);
  return out + "]";
}

Result<Shard> parse_shard(std::span<const std::byte> bytes, int shard_index) {
  Cursor in(bytes);
  QUIRE_TRY(const Header header, take_header(in));
  Shard shard;
  shard.version = header.version;
  shard.file_bytes = bytes.size();
  QUIRE_TRY(shard.metadata, take_metadata(in, header.entry_count));
  QUIRE_TRY(shard.alignment, alignment_of(shard.metadata));

  std::vector<TensorRecord> records;
  for (uint64_t i = 0; i < header.tensor_count; ++i) {
    auto r = take_tensor(in);
    if (!r.ok()) return r.take_error().context(tensor_label(i, {}));
    r->info.shard = shard_index;
    records.push_back(*r);
  }
  shard.data_begin = in.position();
  if (records.empty()) return shard;

  // No overflow: the position is at most the file's size, and the alignment at most 1 MiB.
  shard.data_begin = (in.position() + shard.alignment - 1) / shard.alignment * shard.alignment;
  if (shard.data_begin > bytes.size())
    return file_error(
        "the data section should begin at byte {}, but the file ends at {}; it is truncated, copy it again",
        shard.data_begin, bytes.size());
  for (size_t i = 0; i < records.size(); ++i) {
    auto placed = place(records[i], bytes, shard);
    if (!placed.ok()) return placed.take_error().context(tensor_label(i, records[i].info.name));
    shard.tensors.push_back(records[i].info);
  }
  QUIRE_CHECKED(check_overlap(shard.tensors));
  return shard;
}

}  // namespace quire::gguf
