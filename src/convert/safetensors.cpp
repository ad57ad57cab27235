#include "convert/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "convert/json.h"
#include "core/json_builder.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

struct ElementInfo {
  std::string_view name;
  int bytes;
};
constexpr ElementInfo kElements[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
    {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8},
};

std::optional<Element> find_element(std::string_view name) {
  for (size_t i = 0; i < std::size(kElements); ++i)
    if (kElements[i].name == name) return static_cast<Element>(i);
  return std::nullopt;
}

// Reads the header as it streams by: it never becomes a document, so memory stays in proportion to the
// tensors named.
//   { "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"key": "text"} }
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(uint64_t data_bytes) : data_bytes_(data_bytes) {}

  struct Entry {
    SourceTensor tensor;
    uint64_t begin = 0, end = 0;
  };
  std::vector<Entry> take() { return std::move(entries_); }
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    if (where_ == Where::kStart) return go(Where::kFile);
    if (where_ != Where::kEntry) return fail_type();
    return go(in_metadata_ ? Where::kMetadata : Where::kTensor);
  }
  bool end_object() override {
    if (where_ == Where::kFile) return go(Where::kEnd);
    if (where_ == Where::kTensor && !finish_tensor()) return false;
    return go(Where::kFile);
  }
  bool start_array(size_t) override {
    if (where_ == Where::kShape && !in_array_) return in_array_ = true;
    if (where_ == Where::kOffsets && !in_array_) return in_array_ = true;
    return fail_type();
  }
  bool end_array() override {
    in_array_ = false;
    return go(Where::kTensor);
  }

  bool key(std::string& name) override {
    if (where_ == Where::kFile) return begin_entry(name);
    if (where_ == Where::kMetadata) {
      if (!metadata_keys_.insert(name).second)
        return fail(fmt::format("__metadata__ has the key {} twice", printable(name)));
      return go(Where::kText);
    }
    if (name == "dtype") return begin_field(kHasType, Where::kType);
    if (name == "shape") return begin_field(kHasShape, Where::kShape);
    if (name == "data_offsets") return begin_field(kHasOffsets, Where::kOffsets);
    return fail(fmt::format("tensor {} has an unknown field {}", current(), printable(name)));
  }

  bool string(std::string& text) override {
    if (where_ == Where::kText) return go(Where::kMetadata);
    if (where_ != Where::kType) return fail_type();
    const auto element = find_element(text);
    if (!element) return fail(fmt::format("tensor {} has the unknown type {}", current(), printable(text)));
    entry_.tensor.element = *element;
    return go(Where::kTensor);
  }
  bool number_unsigned(uint64_t x) override {
    if (!in_array_) return fail_type();
    if (where_ == Where::kShape) {
      if (x > INT64_MAX) return fail(fmt::format("tensor {} has the impossible dimension {}", current(), x));
      if (entry_.tensor.shape.size() == kMaxRank)
        return fail(fmt::format("tensor {} has more than {} dimensions", current(), kMaxRank));
      entry_.tensor.shape.push_back(static_cast<int64_t>(x));
      return true;
    }
    if (offsets_ == 2) return fail(fmt::format("tensor {} has more than two data_offsets", current()));
    (offsets_++ == 0 ? entry_.begin : entry_.end) = x;
    return true;
  }
  bool number_integer(int64_t x) override {
    if (!in_array_) return fail_type();
    return fail(fmt::format("tensor {} has the negative number {}", current(), x));
  }

  bool null() override { return fail_type(); }
  bool boolean(bool) override { return fail_type(); }
  bool number_float(double, const std::string&) override { return fail_type(); }
  bool binary(json::binary_t&) override { return fail_type(); }
  bool parse_error(size_t position, const std::string& last_token, const json::exception&) override {
    return fail(fmt::format("the header is not valid JSON: {}", syntax_complaint(position, last_token, printable)));
  }

 private:
  enum class Where { kStart, kFile, kEntry, kMetadata, kText, kTensor, kType, kShape, kOffsets, kEnd };
  enum Field : unsigned { kHasType = 1, kHasShape = 2, kHasOffsets = 4 };

  bool go(Where where) {
    where_ = where;
    return true;
  }
  bool fail(std::string what) {
    error_ = std::move(what);
    return false;
  }
  std::string current() const { return printable(entry_.tensor.name); }

  bool fail_type() {
    if (where_ == Where::kStart || where_ == Where::kEnd) return fail("the header is no JSON object");
    if (where_ == Where::kText) return fail("__metadata__ holds something else than text");
    if (where_ == Where::kEntry && in_metadata_) return fail("__metadata__ is no object");
    if (where_ == Where::kEntry) return fail(fmt::format("tensor {} is described by no object", current()));
    const std::string_view field = where_ == Where::kType    ? "dtype"
                                   : where_ == Where::kShape ? "shape"
                                                             : "data_offsets";
    return fail(fmt::format("tensor {}: its {} is not {}", current(), field,
                            where_ == Where::kType ? "a text" : "a list of whole numbers"));
  }

  bool begin_entry(const std::string& name) {
    entry_ = {};
    entry_.tensor.name = name;
    fields_ = 0;
    offsets_ = 0;
    in_metadata_ = name == "__metadata__";
    if (in_metadata_ && std::exchange(seen_metadata_, true)) return fail("__metadata__ occurs twice");
    if (name.empty() || name.size() > kMaxSourceName || name.find('\0') != name.npos)
      return fail(
          fmt::format("{} cannot be a tensor's name: 1 to {} bytes without NUL", printable(name), kMaxSourceName));
    return go(Where::kEntry);
  }
  bool begin_field(Field field, Where where) {
    if ((fields_ & field) != 0) return fail(fmt::format("tensor {} has a field twice", current()));
    fields_ |= field;
    return go(where);
  }

  bool finish_tensor() {
    if (fields_ != (kHasType | kHasShape | kHasOffsets))
      return fail(fmt::format("tensor {} lacks its dtype, shape or data_offsets", current()));
    if (offsets_ != 2) return fail(fmt::format("tensor {} lacks an end of its data", current()));
    if (entry_.begin > entry_.end || entry_.end > data_bytes_)
      return fail(fmt::format("tensor {} lies at bytes {} to {} of {}; the file is truncated or damaged, copy it again",
                              current(), entry_.begin, entry_.end, data_bytes_));
    int64_t bytes = element_bytes(entry_.tensor.element);
    bool overflows = false, empty = false;
    for (const int64_t n : entry_.tensor.shape) {
      empty |= n == 0;
      overflows |= __builtin_mul_overflow(bytes, std::max<int64_t>(n, 1), &bytes);
    }
    if (overflows)
      return fail(fmt::format("tensor {} of shape {} is impossibly large", current(), shape_text(entry_.tensor)));
    if (empty) bytes = 0;
    if (static_cast<uint64_t>(bytes) != entry_.end - entry_.begin)
      return fail(fmt::format("tensor {}: {} of type {} needs {} bytes, but its data_offsets span {}", current(),
                              shape_text(entry_.tensor), element_name(entry_.tensor.element), bytes,
                              entry_.end - entry_.begin));
    entries_.push_back(std::move(entry_));
    return true;
  }

  uint64_t data_bytes_;
  Where where_ = Where::kStart;
  bool in_array_ = false, in_metadata_ = false, seen_metadata_ = false;
  unsigned fields_ = 0;
  int offsets_ = 0;
  Entry entry_;
  std::vector<Entry> entries_;
  std::set<std::string> metadata_keys_;
  std::string error_;
};

// The tensors must tile the data: sorted by position, each begins where the one before it ends.
Status check_tiling(const std::vector<HeaderReader::Entry>& entries, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const auto& e : entries) {
    if (e.begin < at)
      return file_error("tensor {} begins at byte {} of the data, inside the tensor before it",
                        printable(e.tensor.name), e.begin);
    if (e.begin > at)
      return file_error("tensor {} begins at byte {} of the data, {} bytes behind the tensor before it",
                        printable(e.tensor.name), e.begin, e.begin - at);
    at = e.end;
  }
  if (at != data_bytes) return file_error("the tensors end after {} bytes of data, but there are {}", at, data_bytes);
  return {};
}

}  // namespace

std::string_view element_name(Element e) {
  return kElements[static_cast<size_t>(e)].name;
}
int element_bytes(Element e) {
  return kElements[static_cast<size_t>(e)].bytes;
}

int64_t SourceTensor::elems() const {
  return static_cast<int64_t>(data.size()) / element_bytes(element);
}
std::string shape_text(const SourceTensor& t) {
  return fmt::format("[{}]", fmt::join(t.shape, ", "));
}

Result<std::vector<SourceTensor>> parse_safetensors(std::span<const std::byte> bytes) {
  uint64_t header = 0;
  if (bytes.size() < sizeof header + 2)
    return file_error("{} bytes are too few for a safetensors file; copy it again", bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header > kMaxHeaderBytes)
    return file_error("the header claims {} bytes (limit {}); this is no safetensors file, or it is damaged", header,
                      kMaxHeaderBytes);
  if (header > bytes.size() - sizeof header)
    return file_error("the header claims {} bytes, but {} follow; the file is truncated, copy it again", header,
                      bytes.size() - sizeof header);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof header, header);
  if (!text.starts_with('{')) return file_error("the header is no JSON object; this is no safetensors file");

  const std::span<const std::byte> data = bytes.subspan(sizeof header + header);
  HeaderReader reader(data.size());
  if (!json::sax_parse(text.begin(), text.end(), &reader)) return file_error("{}", reader.error());
  std::vector<HeaderReader::Entry> entries = reader.take();
  const gguf::NameIndex names(entries, [](const HeaderReader::Entry& e) { return std::string_view(e.tensor.name); });
  if (const auto twice = names.duplicate())
    return file_error("tensor {} occurs twice", printable(entries[*twice].tensor.name));
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  QUIRE_CHECKED(check_tiling(entries, data.size()));
  std::vector<SourceTensor> tensors;
  tensors.reserve(entries.size());
  for (HeaderReader::Entry& e : entries) {
    e.tensor.data = data.subspan(e.begin, e.end - e.begin);
    tensors.push_back(std::move(e.tensor));
  }
  return tensors;
}

}  // namespace quire::convert
