#include "quant/importance.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "gguf/writer.h"

namespace quire::quant {
namespace {

constexpr std::string_view kType = "imatrix";
constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";
constexpr const char *kDatasets = "imatrix.datasets", *kChunkCount = "imatrix.chunk_count",
                     *kChunkSize = "imatrix.chunk_size";

std::string shape(int64_t columns, int64_t matrices) {
  return matrices == 1 ? fmt::format("{} columns", columns)
                       : fmt::format("{} matrices of {} columns", matrices, columns);
}

Result<ImportanceOrigin> read_origin(const gguf::File& f) {
  const gguf::Value* type = f.find("general.type");
  if (type == nullptr || type->type != gguf::ValueType::kString || type->is_array || type->strings[0] != kType)
    return file_error("not an importance file (general.type is not \"imatrix\"); `quire imatrix` writes one");
  ImportanceOrigin origin;
  if (f.has(kDatasets)) {
    QUIRE_TRY(const auto names, f.get_strings(kDatasets));
    origin.datasets.assign(names.begin(), names.end());
  }
  QUIRE_TRY(origin.chunk_count, f.get_u32_or(kChunkCount, 0));
  QUIRE_TRY(origin.chunk_size, f.get_u32_or(kChunkSize, 0));
  return origin;
}

// The values of one tensor of a pair; dims [d0, matrices].
Result<std::span<const float>> values(const gguf::TensorInfo& t, int64_t d0, int64_t matrices) {
  const std::string name = gguf::printable(t.name);
  if (t.dtype != DType::kF32)
    return file_error("tensor {}: its type is {}, but importances are f32", name, dtype_name(t.dtype));
  if (t.dims[0] != d0 || t.dims[1] != matrices || t.dims[2] != 1 || t.dims[3] != 1 || t.elems() == 0)
    return file_error("tensor {}: shape {} should be [{}, {}]", name, gguf::shape_text(t), d0, matrices);
  // Payloads begin on 8-byte boundaries.
  const std::span<const float> v(reinterpret_cast<const float*>(t.data), static_cast<size_t>(t.elems()));
  for (size_t i = 0; i < v.size(); ++i)
    if (!std::isfinite(v[i]) || v[i] < 0)
      return file_error("tensor {}: element {} is {}, which is no sum of squares or count", name, i, v[i]);
  return v;
}

Result<Importance::Entry> read_entry(const gguf::File& f, const gguf::TensorInfo& sums) {
  std::string_view tensor = sums.name;
  tensor.remove_suffix(kSums.size());
  if (tensor.empty()) return file_error("tensor {}: the name of a weight is missing", gguf::printable(sums.name));
  const std::string counts_name = fmt::format("{}{}", tensor, kCounts);
  const gguf::TensorInfo* counts = f.find_tensor(counts_name);
  if (counts == nullptr)
    return file_error("tensor {}: there is no {} beside it", gguf::printable(sums.name), gguf::printable(counts_name));
  Importance::Entry e{tensor, sums.dims[0], sums.dims[1], {}, {}};
  QUIRE_TRY(e.sum2, values(sums, e.columns, e.matrices));
  QUIRE_TRY(e.counts, values(*counts, 1, e.matrices));
  for (int64_t m = 0; m < e.matrices; ++m) {
    const float count = e.counts[static_cast<size_t>(m)];
    if (count > 0 && count < 1)
      return file_error("tensor {}: element {} is {}, which is no number of tokens", gguf::printable(counts->name), m,
                        count);
    const auto row = e.sum2.subspan(static_cast<size_t>(m * e.columns), static_cast<size_t>(e.columns));
    if (count == 0 && std::any_of(row.begin(), row.end(), [](float x) { return x > 0; }))
      return file_error("tensor {}: matrix {} has sums, but by its count no token reached it",
                        gguf::printable(sums.name), m);
  }
  return e;
}

}  // namespace

Result<Importance> Importance::open(const std::string& path) {
  QUIRE_TRY(gguf::File file, gguf::File::open(path));
  return read(std::move(file)).context(path);
}

Result<Importance> Importance::parse(std::span<const std::byte> bytes) {
  QUIRE_TRY(gguf::File file, gguf::File::parse(bytes));
  return read(std::move(file));
}

Result<Importance> Importance::read(gguf::File opened) {
  Importance out(std::move(opened));
  const gguf::File& f = out.file_;
  QUIRE_TRY(out.origin_, read_origin(f));
  size_t columns = 0;
  for (const gguf::TensorInfo& t : f.tensors()) {
    if (t.name.ends_with(kSums)) {
      QUIRE_TRY(const Entry e, read_entry(f, t));
      out.entries_.push_back(e);
      columns += e.sum2.size();
    } else if (t.name.ends_with(kCounts)) {
      const std::string_view tensor = t.name.substr(0, t.name.size() - kCounts.size());
      const std::string sums_name = fmt::format("{}{}", tensor, kSums);
      if (f.find_tensor(sums_name) == nullptr)
        return file_error("tensor {}: there is no {} beside it", gguf::printable(t.name), gguf::printable(sums_name));
    } else {
      return file_error("tensor {}: importances end in {} or {}", gguf::printable(t.name), kSums, kCounts);
    }
  }
  if (out.entries_.empty()) return file_error("an importance file without tensors");
  out.by_tensor_ = gguf::NameIndex(out.entries_, [](const Entry& e) { return e.tensor; });
  out.means_.reserve(columns);
  for (const Entry& e : out.entries_) {
    out.begins_.push_back(out.means_.size());
    for (size_t i = 0; i < e.sum2.size(); ++i) {
      const float count = e.counts[i / static_cast<size_t>(e.columns)];
      out.means_.push_back(count > 0 ? e.sum2[i] / count : 0.0f);
    }
  }
  return out;
}

const Importance::Entry* Importance::entry(std::string_view tensor) const {
  const auto i = by_tensor_.find(
      entries_, [](const Entry& e) { return e.tensor; }, tensor);
  return i ? &entries_[*i] : nullptr;
}

std::span<const float> Importance::find(std::string_view tensor, int64_t matrix, int64_t columns) const {
  const Entry* e = entry(tensor);
  if (e == nullptr || e->columns != columns || matrix < 0 || matrix >= e->matrices ||
      e->counts[static_cast<size_t>(matrix)] == 0)
    return {};
  const size_t begin = begins_[static_cast<size_t>(e - entries_.data())] + static_cast<size_t>(matrix * columns);
  return std::span(means_).subspan(begin, static_cast<size_t>(columns));
}

Status Importance::check(std::string_view tensor, int64_t columns, int64_t matrices) const {
  const Entry* e = entry(tensor);
  if (e == nullptr || (e->columns == columns && e->matrices == matrices)) return {};
  return file_error("the importance of {} is for {}, but the tensor has {}; it was made with another model",
                    gguf::printable(tensor), shape(e->columns, e->matrices), shape(columns, matrices));
}

Status ImportanceTotals::add(std::string_view tensor, int64_t columns, std::span<const double> sum2,
                             std::span<const double> counts) {
  const auto matrices = static_cast<int64_t>(counts.size());
  QUIRE_CHECK(columns > 0 && static_cast<int64_t>(sum2.size()) == columns * matrices, "{} sums", sum2.size());
  auto at = tensors_.find(tensor);
  if (at == tensors_.end()) {
    tensors_.emplace(tensor, Total{columns, matrices, {sum2.begin(), sum2.end()}, {counts.begin(), counts.end()}});
    return {};
  }
  Total& t = at->second;
  if (t.columns != columns || t.matrices != matrices)
    return file_error("{}: cannot add {} to {}; these belong to different models", gguf::printable(tensor),
                      shape(columns, matrices), shape(t.columns, t.matrices));
  for (size_t i = 0; i < sum2.size(); ++i) t.sum2[i] += sum2[i];
  for (size_t i = 0; i < counts.size(); ++i) t.counts[i] += counts[i];
  return {};
}

Status ImportanceTotals::add(const Importance& file) {
  for (const Importance::Entry& e : file.entries()) {
    const std::vector<double> sum2(e.sum2.begin(), e.sum2.end()), counts(e.counts.begin(), e.counts.end());
    QUIRE_CHECKED(add(e.tensor, e.columns, sum2, counts));
  }
  const ImportanceOrigin& o = file.origin();
  for (const std::string& d : o.datasets) QUIRE_CHECKED(add_text(d, 0, o.chunk_size));
  return add_text({}, o.chunk_count, o.chunk_size);
}

Status ImportanceTotals::add_text(std::string_view dataset, uint32_t chunks, uint32_t chunk_size) {
  auto& names = origin_.datasets;
  if (!dataset.empty() && std::find(names.begin(), names.end(), dataset) == names.end()) names.emplace_back(dataset);
  if (__builtin_add_overflow(origin_.chunk_count, chunks, &origin_.chunk_count))
    return request_error("more than 2^32 windows of text in all");
  if (origin_.chunk_size == 0) origin_.chunk_size = chunk_size;
  return {};
}

Status ImportanceTotals::write(const std::string& path) const {
  gguf::Writer w;
  w.add_string("general.type", kType);
  const std::vector<std::string_view> names(origin_.datasets.begin(), origin_.datasets.end());
  w.add_strings(kDatasets, names);
  w.add(kChunkCount, origin_.chunk_count);
  w.add(kChunkSize, origin_.chunk_size);
  for (const auto& [name, t] : tensors_) {
    for (size_t i = 0; i < t.sum2.size(); ++i)
      if (!(t.sum2[i] <= static_cast<double>(FLT_MAX)))  // NaN too
        return file_error(
            "{}: the squares of input {} of matrix {} sum to {}; the model computes values that are not "
            "finite",
            name, i % static_cast<size_t>(t.columns), i / static_cast<size_t>(t.columns), t.sum2[i]);
    const int64_t sums[] = {t.columns, t.matrices}, counts[] = {1, t.matrices};
    QUIRE_CHECKED(w.add_tensor(fmt::format("{}{}", name, kSums), DType::kF32, sums));
    QUIRE_CHECKED(w.add_tensor(fmt::format("{}{}", name, kCounts), DType::kF32, counts));
  }
  QUIRE_CHECKED(w.open(path));
  for (const auto& [name, t] : tensors_) {
    const std::vector<float> sum2(t.sum2.begin(), t.sum2.end()), counts(t.counts.begin(), t.counts.end());
    QUIRE_CHECKED(w.write_tensor(std::as_bytes(std::span(sum2))));
    QUIRE_CHECKED(w.write_tensor(std::as_bytes(std::span(counts))));
  }
  return w.finish();
}

}  // namespace quire::quant
