#include "parts/weight_loader.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <iterator>

#include "quant/format.h"

namespace quire {
namespace {

std::string dims_text(int64_t cols, int64_t rows, int64_t experts) {
  return experts == 1 ? fmt::format("[{}, {}]", cols, rows) : fmt::format("[{}, {}, {}]", cols, rows, experts);
}

// A file names the innermost dimension first.
std::vector<int64_t> reversed(std::initializer_list<int64_t> dims) {
  return {std::make_reverse_iterator(dims.end()), std::make_reverse_iterator(dims.begin())};
}

// Writers differ in whether a dimension of one is there; every other one counts, and so does their order.
std::vector<int64_t> without_ones(std::vector<int64_t> dims) {
  std::erase(dims, 1);
  return dims;
}

}  // namespace

const gguf::TensorInfo* find_scale(const gguf::File& file, std::string_view stem) {
  const gguf::TensorInfo* const t = file.find_tensor(fmt::format("{}.scale", stem));
  return t != nullptr ? t : file.find_tensor(fmt::format("{}.weight.scale", stem));
}

Result<const float*> WeightLoader::scale_of(const std::string& stem, int64_t experts) {
  // Static activation scales are not needed: activations stay in 16 bits.
  for (const char* name : {".input_scale", ".weight.input_scale"}) used_.insert(stem + name);
  const gguf::TensorInfo* const scale = find_scale(file_, stem);
  if (scale == nullptr) return static_cast<const float*>(nullptr);
  const std::string name(scale->name);
  QUIRE_TRY(const Tensor t, floats(name, {experts}));
  for (int64_t i = 0; i < experts; ++i)
    if (!std::isfinite(t.as<float>()[i])) return file_error("tensor {}: factor {} is not finite", name, i);
  return static_cast<const float*>(t.as<float>());
}

Result<Weight> WeightLoader::matrix(TensorRole role, int64_t block) {
  QUIRE_TRY(Weight w, whole_matrix(role, block));
  QUIRE_TRY(w.scale, scale_of(tensor_stem(role, block), w.experts));
  return share(w, role, block);
}

Result<Weight> WeightLoader::matrix_without_scale(TensorRole role, int64_t block) {
  QUIRE_TRY(const Weight w, whole_matrix(role, block));
  return share(w, role, block);
}

Result<Weight> WeightLoader::whole_matrix(TensorRole role, int64_t block) {
  const TensorSpec& spec = tensor_spec(role);
  const int64_t rows = size_of(spec.rows, whole_), cols = size_of(spec.cols, whole_);
  const int64_t experts = spec.kind == TensorKind::kExperts ? whole_.experts : 1;
  const std::string name = tensor_name(role, block);
  QUIRE_TRY(const gguf::TensorInfo* t, file_.get_tensor(name));
  used_.insert(name);
  if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != experts || t->dims[3] != 1)
    return file_error("tensor {}: shape {} does not fit the model, which needs {}", name, gguf::shape_text(*t),
                      dims_text(cols, rows, experts));
  QUIRE_CHECKED(quant::check_decodable(name, t->dtype));
  Weight w;
  w.dtype = t->dtype;
  w.data = t->data;
  w.rows = rows;
  w.cols = cols;
  w.experts = experts;
  return w;
}

Result<Weight> WeightLoader::optional_matrix(TensorRole role, int64_t block) {
  if (file_.find_tensor(tensor_name(role, block)) == nullptr) return Weight{};
  return matrix(role, block);
}

Result<Weight> WeightLoader::matrix_rows(TensorRole role, int64_t block, std::span<const int64_t> order) {
  QUIRE_TRY(Weight w, matrix(role, block));
  std::vector<ShareRange> rows;
  for (const int64_t r : order) rows.push_back({r, 1});
  return copy_rows(w, rows);
}

Result<Tensor> WeightLoader::floats(const std::string& name, std::initializer_list<int64_t> dims) {
  QUIRE_TRY(const gguf::TensorInfo* t, file_.get_tensor(name));
  used_.insert(name);
  if (without_ones({t->dims.begin(), t->dims.end()}) != without_ones(reversed(dims)))
    return file_error("tensor {}: shape {} does not fit the model, which needs [{}]", name, gguf::shape_text(*t),
                      fmt::join(reversed(dims), ", "));
  if (t->dtype == DType::kF32) return make_tensor(const_cast<std::byte*>(t->data), DType::kF32, dims);
  QUIRE_CHECKED(quant::check_decodable(name, t->dtype));
  std::vector<float> values(static_cast<size_t>(t->elems()));
  for (int64_t r = 0; r < t->rows(); ++r)
    quant::decode_row(t->dtype, t->data + r * t->row_bytes(), t->dims[0], values.data() + r * t->dims[0]);
  return make_tensor(keep(std::move(values)).data, DType::kF32, dims);
}

Tensor WeightLoader::keep(std::vector<float> values) {
  arena_.bytes += std::ssize(values) * 4;
  std::vector<float>& kept = arena_.vectors.emplace_back(std::move(values));
  return make_tensor(kept.data(), {std::ssize(kept)});
}

Tensor WeightLoader::ones(int64_t n) {
  return keep(std::vector<float>(static_cast<size_t>(n), 1.0f));
}

Result<Tensor> WeightLoader::scaled_vector(TensorRole role, int64_t block, float factor) {
  QUIRE_TRY(const Tensor t, vector(role, block));
  std::vector<float> values(t.as<float>(), t.as<float>() + t.elems());
  for (float& x : values) x *= factor;
  return keep(std::move(values));
}

Result<Tensor> WeightLoader::vector(TensorRole role, int64_t block) {
  const TensorSpec& spec = tensor_spec(role);
  const int64_t cols = size_of(spec.cols, whole_), rows = size_of(spec.rows, whole_);
  const std::string name = tensor_name(role, block);
  QUIRE_TRY(const Tensor t, spec.rows == Extent::kOne ? floats(name, {cols}) : floats(name, {rows, cols}));
  return share(t, role);
}

Result<Tensor> WeightLoader::optional_vector(TensorRole role, int64_t block) {
  if (file_.find_tensor(tensor_name(role, block)) == nullptr) return Tensor{};
  return vector(role, block);
}

Result<Tensor> WeightLoader::optional_numbers(TensorRole role, int64_t block) {
  const std::string name = tensor_name(role, block);
  const gguf::TensorInfo* const t = file_.find_tensor(name);
  if (t == nullptr) return Tensor{};
  used_.insert(name);
  if (t->dims[0] != t->elems() || (t->dtype != DType::kI32 && t->dtype != DType::kI64))
    return file_error("tensor {}: {} of {}, but it must be a list of i32 or i64", name, gguf::shape_text(*t),
                      dtype_name(t->dtype));
  std::vector<int32_t>& numbers = arena_.numbers.emplace_back(static_cast<size_t>(t->elems()));
  arena_.bytes += t->elems() * 4;
  for (size_t i = 0; i < numbers.size(); ++i) {
    int64_t n = 0;
    int32_t narrow = 0;
    if (t->dtype == DType::kI64) std::memcpy(&n, t->data + i * sizeof n, sizeof n);
    std::memcpy(&narrow, t->data + i * sizeof narrow, t->dtype == DType::kI32 ? sizeof narrow : 0);
    if (t->dtype == DType::kI32) n = narrow;
    if (n != static_cast<int32_t>(n)) return file_error("tensor {}: element {} is {}", name, i, n);
    numbers[i] = static_cast<int32_t>(n);
  }
  return make_tensor(numbers.data(), {std::ssize(numbers)});
}

std::vector<std::string_view> WeightLoader::unread() const {
  std::vector<std::string_view> names;
  for (const gguf::TensorInfo& t : file_.tensors())
    if (!used_.contains(std::string(t.name))) names.push_back(t.name);
  return names;
}

}  // namespace quire
