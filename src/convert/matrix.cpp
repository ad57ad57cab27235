#include "convert/matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "convert/bytes.h"
#include "core/float.h"
#include "gguf/metadata.h"
#include "quant/fp4.h"

namespace quire::convert {
namespace {

using gguf::printable;

bool is_float(Element e) {
  return e == Element::kBF16 || e == Element::kF16 || e == Element::kF32 || e == Element::kF64;
}
bool is_fp8(Element e) {
  return e == Element::kF8E4M3 || e == Element::kF8E5M2;
}

double decode_e4m3(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = quant::decode_ue4m3(code);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// One element of a plain or FP8 type.
double decode(Element e, const std::byte* p) {
  switch (e) {
    case Element::kBF16:
      return to_float(load_as<bf16>(p));
    case Element::kF16:
      return to_float(load_as<half>(p));
    case Element::kF32:
      return load_as<float>(p);
    case Element::kF64:
      return load_as<double>(p);
    case Element::kF8E4M3:
      return decode_e4m3(load_as<uint8_t>(p));
    case Element::kF8E5M2:  // the upper half of a half
      return to_float(half{static_cast<uint16_t>(load_as<uint8_t>(p) << 8)});
    default:
      QUIRE_CHECK(false, "element {} has no values", element_name(e));
  }
}

// out[c] = the n elements of a row; one loop for each type, so that the compiler can unroll it.
void decode_elements(Element e, const std::byte* p, int64_t n, double* out) {
  if (e == Element::kBF16) {
    for (int64_t c = 0; c < n; ++c) out[c] = to_float(load_as<bf16>(p + 2 * c));
  } else if (e == Element::kF8E4M3) {
    static const std::array<double, 256> kValues = [] {
      std::array<double, 256> values{};
      for (size_t code = 0; code < values.size(); ++code) values[code] = decode_e4m3(static_cast<uint8_t>(code));
      return values;
    }();
    for (int64_t c = 0; c < n; ++c) out[c] = kValues[load_as<uint8_t>(p + c)];
  } else {
    const int step = element_bytes(e);
    for (int64_t c = 0; c < n; ++c) out[c] = decode(e, p + c * step);
  }
}

uint8_t code_at(const std::byte* codes, int64_t i) {
  const auto pair = load_as<uint8_t>(codes + i / 2);
  return i % 2 == 0 ? pair & 15 : pair >> 4;
}

void decode_fp4_row(const Matrix& m, int64_t r, double* out) {
  const int64_t group = m.coding == Coding::kNvfp4 ? 16 : 32;
  const std::byte* codes = m.data + r * m.row_bytes();
  const std::byte* scales = m.scales + r * (m.cols / group);
  for (int64_t c = 0; c < m.cols; ++c) {
    const auto s = load_as<uint8_t>(scales + c / group);
    const double scale =
        m.coding == Coding::kNvfp4 ? double{quant::decode_ue4m3(s)} * m.tensor_scale : std::ldexp(1.0, s - 127);
    out[c] = quant::decode_e2m1(code_at(codes, c)) * scale;
  }
}

// Wrappers put the text model one level deeper.
std::string canonical_name(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {
      {"model.language_model.", "model."},
      {"language_model.model.", "model."},
      {"language_model.lm_head.", "lm_head."},
      {"model.mtp.", "mtp."},
  };
  for (const auto& [from, to] : kPrefixes)
    if (name.starts_with(from)) return std::string(to).append(name.substr(from.size()));
  return std::string(name);
}

}  // namespace

int64_t Matrix::row_bytes() const {
  if (column_stride > 0) return element_bytes(element);
  return coding == Coding::kNvfp4 || coding == Coding::kMxfp4 ? cols / 2 : cols * element_bytes(element);
}

Matrix Matrix::slice(int64_t begin, int64_t count) const {
  Matrix m = *this;
  m.rows = count;
  m.data += begin * row_bytes();
  m.first_row += begin;
  if (coding == Coding::kNvfp4) m.scales += begin * (cols / 16);
  if (coding == Coding::kMxfp4) m.scales += begin * (cols / 32);
  return m;
}

double fp8_scale(const Matrix& m, int64_t r, int64_t c) {
  const int64_t row = m.first_row + r;
  // Scales lie as codes do.
  const int64_t at = m.column_stride > 0 ? c / m.block_cols * m.scale_cols + row / m.block_rows
                                         : row / m.block_rows * m.scale_cols + c / m.block_cols;
  return decode(m.scale_element, m.scales + at * element_bytes(m.scale_element));
}

void decode_row(const Matrix& m, int64_t r, double* out) {
  if (m.coding == Coding::kNvfp4 || m.coding == Coding::kMxfp4) return decode_fp4_row(m, r, out);
  if (m.coding == Coding::kInt4) return decode_int4_row(m.int4, m.first_row + r, m.cols, out);
  if (m.column_stride > 0) {
    const int64_t step = m.column_stride * element_bytes(m.element);
    for (int64_t c = 0; c < m.cols; ++c) out[c] = decode(m.element, m.data + r * m.row_bytes() + c * step);
  } else {
    decode_elements(m.element, m.data + r * m.row_bytes(), m.cols, out);
  }
  if (m.coding == Coding::kPlain) return;
  for (int64_t begin = 0; begin < m.cols; begin += m.block_cols) {
    const double scale = fp8_scale(m, r, begin);
    const int64_t end = std::min(begin + m.block_cols, m.cols);
    for (int64_t c = begin; c < end; ++c) out[c] *= scale;
  }
}

bool same_values(const Matrix& a, const Matrix& b) {
  if (a.rows != b.rows || a.cols != b.cols) return false;
  const bool plain = a.coding == Coding::kPlain && b.coding == Coding::kPlain && a.element == b.element &&
                     a.column_stride == 0 && b.column_stride == 0;
  std::vector<double> left(static_cast<size_t>(a.cols)), right(left.size());
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t at = r * a.row_bytes();
    if (plain && std::memcmp(a.data + at, b.data + at, static_cast<size_t>(a.row_bytes())) == 0) continue;
    decode_row(a, r, left.data());
    decode_row(b, r, right.data());
    if (left != right) return false;
  }
  return true;
}

Source::Source(const FolderWeights& weights, bool gptq_v2) : weights_(weights), gptq_v2_(gptq_v2) {
  for (const SourceTensor& t : weights.tensors()) by_name_.emplace_back(canonical_name(t.name), &t);
  std::sort(by_name_.begin(), by_name_.end());
}

Status Source::check() const {
  for (size_t i = 1; i < by_name_.size(); ++i)
    if (by_name_[i].first == by_name_[i - 1].first)
      return file_error("tensors {} and {} would be the same one", printable(by_name_[i - 1].second->name),
                        printable(by_name_[i].second->name));
  return {};
}

const SourceTensor* Source::find(std::string_view canonical) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), canonical,
                                   [](const auto& entry, std::string_view name) { return entry.first < name; });
  return at == by_name_.end() || at->first != canonical ? nullptr : at->second;
}

const SourceTensor* Source::use(std::string_view canonical) {
  const SourceTensor* t = find(canonical);
  if (t != nullptr) used_.insert(t);
  return t;
}

bool Source::has_shape(std::string_view name, std::span<const int64_t> shape) const {
  const SourceTensor* const t = find(name);
  return t != nullptr && std::ranges::equal(t->shape, shape);
}

bool Source::has_any(std::string_view prefix) const {
  return std::any_of(by_name_.begin(), by_name_.end(), [&](const auto& e) { return e.first.starts_with(prefix); });
}

std::vector<std::string> Source::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, t] : by_name_)
    if (!used_.contains(t)) names.push_back(t->name);
  return names;
}

Error Source::where(const SourceTensor& t, Error e) const {
  return std::move(e).context(fmt::format("{}: tensor {}", weights_.file_of(t), printable(t.name)));
}

Result<Matrix> Source::plain(const SourceTensor& t, int64_t rows, int64_t cols) {
  if (!is_float(t.element) && !is_fp8(t.element))
    return where(t, file_error("type {} holds no weights that can be read here", element_name(t.element)));
  // [E, 2I, H] is E * 2I rows of H; a vector may be one row or one column.
  if (t.elems() != rows * cols || (t.shape.size() > 1 && cols > 1 && t.shape.back() != cols))
    return where(t, file_error("shape {} does not fit config.json, which needs [{}, {}]", shape_text(t), rows, cols));
  Matrix m;
  m.name = t.name;
  m.coding = is_fp8(t.element) ? Coding::kFp8 : Coding::kPlain;
  m.element = t.element;
  m.rows = rows;
  m.cols = cols;
  m.data = t.data.data();
  return m;
}

// `separator` is "." for "<stem>.weight" and "_" for packed experts: "experts.gate_up_proj_scale_inv".
Status Source::add_fp8_scales(std::string_view stem, std::string_view separator, const SourceTensor& t, Matrix& m) {
  const std::string base = separator == "." ? fmt::format("{}.weight", stem) : std::string(stem);
  const SourceTensor* s = use(base + "_scale_inv");
  if (s == nullptr) s = use(base + "_scale");
  if (s == nullptr) return where(t, file_error("has FP8 codes, but no {}_scale_inv and no {}_scale", base, base));
  use(fmt::format("{}.input_scale", stem));  // static activations are not used
  if (!is_float(s->element)) return where(*s, file_error("scales of type {} cannot be read", element_name(s->element)));
  m.scales = s->data.data();
  m.scale_element = s->element;
  m.block_cols = m.cols;
  if (s->elems() == 1) {
    m.block_rows = m.rows;
    return {};
  }
  if (s->elems() == m.rows && (s->shape.size() == 1 || s->shape.back() == 1)) return {};  // one for each row
  // A grid of blocks; DeepSeek and Qwen have 128 x 128. Packed experts: one grid for each, stacked.
  constexpr int64_t kBlock = 128;
  const int64_t grids = t.shape.size() == 3 ? t.shape[0] : 1, rows = m.rows / std::max<int64_t>(grids, 1);
  m.block_rows = m.block_cols = kBlock;
  m.scale_cols = ceil_div(m.cols, kBlock);
  if (grids > 1 && rows % kBlock != 0)
    return where(t, file_error("experts of {} rows are no multiple of the {} rows that share a scale", rows, kBlock));
  if (s->shape.size() < 2 || s->shape.back() != m.scale_cols ||
      s->elems() != grids * ceil_div(rows, kBlock) * m.scale_cols)
    return where(*s, file_error("shape {} does not scale {} matrices of [{}, {}] in blocks of {}", shape_text(*s),
                                grids, rows, m.cols, kBlock));
  return {};
}

Result<float> Source::scalar(std::string_view name) {
  const SourceTensor* t = use(name);
  QUIRE_CHECK(t != nullptr, "{}", name);
  if (!is_float(t->element) || t->elems() != 1)
    return where(*t, file_error("{} of type {} is not one number", shape_text(*t), element_name(t->element)));
  const auto x = static_cast<float>(decode(t->element, t->data.data()));
  if (!(x > 0) || !std::isfinite(x)) return where(*t, file_error("scale {} is not positive", x));
  return x;
}

Status Source::check_fp4_scales(const SourceTensor& scales, Coding coding) const {
  for (const std::byte b : scales.data) {
    const auto x = static_cast<uint8_t>(b);
    if (coding == Coding::kNvfp4 ? (x > 0x7e && x != 0x80) : x == 0xff)
      return where(scales, file_error("scale code {:#04x} is negative or not a number", x));
  }
  return {};
}

Result<Matrix> Source::fp4(std::string_view stem, const SourceTensor& codes, int64_t rows, int64_t cols) {
  const auto named = [&](std::string_view suffix) { return fmt::format("{}.{}", stem, suffix); };
  const SourceTensor* s = use(named("weight_scale"));
  if (s == nullptr) return where(codes, file_error("has 4-bit codes, but there is no {}", named("weight_scale")));
  Matrix m;
  m.name = codes.name;
  m.rows = rows;
  m.cols = cols;
  m.data = codes.data.data();
  m.scales = s->data.data();
  const bool nv = s->element == Element::kF8E4M3;
  if (!nv && s->element != Element::kU8 && s->element != Element::kF8E8M0)
    return where(*s, file_error("scales of type {} are neither NVFP4's (F8_E4M3) nor MXFP4's (U8, F8_E8M0)",
                                element_name(s->element)));
  m.coding = nv ? Coding::kNvfp4 : Coding::kMxfp4;
  const int64_t group = nv ? 16 : 32;
  if (cols % group != 0 || codes.element != Element::kU8 || codes.shape != std::vector<int64_t>{rows, cols / 2} ||
      s->shape != std::vector<int64_t>{rows, cols / group})
    return where(codes, file_error("{} codes of type {} and {} scales do not make the [{}, {}] that config.json needs",
                                   shape_text(codes), element_name(codes.element), shape_text(*s), rows, cols));
  QUIRE_CHECKED(check_fp4_scales(*s, m.coding));
  if (!nv) return m;
  // ModelOpt multiplies by its tensor scales, compressed-tensors divides.
  if (has(named("weight_scale_2"))) {
    QUIRE_TRY(m.tensor_scale, scalar(named("weight_scale_2")));
    if (has(named("input_scale"))) {
      QUIRE_TRY(m.input_scale, scalar(named("input_scale")));
    }
  } else if (has(named("weight_global_scale"))) {
    QUIRE_TRY(const float global, scalar(named("weight_global_scale")));
    m.tensor_scale = 1.0F / global;
    if (has(named("input_global_scale"))) {
      QUIRE_TRY(const float input, scalar(named("input_global_scale")));
      m.input_scale = 1.0F / input;
    }
  } else {
    return where(codes, file_error("has NVFP4 codes, but neither {} nor {}", named("weight_scale_2"),
                                   named("weight_global_scale")));
  }
  return m;
}

bool Source::has_linear(std::string_view stem) const {
  return has(fmt::format("{}.weight", stem)) || has(fmt::format("{}.weight_packed", stem)) ||
         has(fmt::format("{}.qweight", stem));
}

Result<Matrix> Source::linear(std::string_view stem, int64_t rows, int64_t cols) {
  if (const SourceTensor* packed = use(fmt::format("{}.weight_packed", stem))) {
    use(fmt::format("{}.weight_shape", stem));
    return packed->element == Element::kI32 ? packed_int4(stem, *packed, rows, cols) : fp4(stem, *packed, rows, cols);
  }
  if (const SourceTensor* packed = use(fmt::format("{}.qweight", stem))) return gptq_or_awq(stem, *packed, rows, cols);
  const std::string name = fmt::format("{}.weight", stem);
  const SourceTensor* t = use(name);
  if (t == nullptr) return file_error("tensor {} is missing; the model needs it", name);
  if (t->element == Element::kU8) return fp4(stem, *t, rows, cols);
  QUIRE_TRY(Matrix m, plain(*t, rows, cols));
  if (m.coding == Coding::kFp8) QUIRE_CHECKED(add_fp8_scales(stem, ".", *t, m));
  return m;
}

namespace {

// `m` as it is of each of the experts whose data, and scales if there are any, lie one after the other.
std::vector<Matrix> each_expert(const Matrix& m, const SourceTensor& t, const SourceTensor* scales, int64_t experts) {
  std::vector<Matrix> all;
  const auto of = [&](const SourceTensor& s, int64_t e) { return s.data.data() + std::ssize(s.data) / experts * e; };
  for (int64_t e = 0; e < experts; ++e) {
    all.push_back(m);
    all.back().data = of(t, e);
    if (scales != nullptr) all.back().scales = of(*scales, e);
  }
  return all;
}

}  // namespace

Result<std::vector<Matrix>> Source::oai_experts(std::string_view stem, int64_t experts, int64_t rows, int64_t cols) {
  constexpr int64_t kGroup = 32;
  Matrix m;
  m.rows = rows;
  m.cols = cols;
  const SourceTensor *const t = use(fmt::format("{}_blocks", stem)), *scales = nullptr;
  if (t != nullptr) {
    scales = use(fmt::format("{}_scales", stem));
    if (scales == nullptr) return where(*t, file_error("has 4-bit codes, but there is no {}_scales", stem));
    if (t->element != Element::kU8 || t->shape != std::vector<int64_t>{experts, rows, cols / kGroup, kGroup / 2} ||
        cols % kGroup != 0 || (scales->element != Element::kU8 && scales->element != Element::kF8E8M0) ||
        scales->shape != std::vector<int64_t>{experts, rows, cols / kGroup})
      return where(*t, file_error("{} codes and {} scales do not make the [{}, {}, {}] that config.json needs",
                                  shape_text(*t), shape_text(*scales), experts, rows, cols));
    m.coding = Coding::kMxfp4;
    QUIRE_CHECKED(check_fp4_scales(*scales, m.coding));
  } else if (!has(stem)) {
    return file_error("tensors {}_blocks and {} are missing; the model needs one of them", stem, stem);
  } else {
    return transposed_experts(stem, experts, rows, cols);
  }
  m.name = t->name;
  return each_expert(m, *t, scales, experts);
}

// Of FP8 codes [experts, cols, rows]: one number for each expert, or a grid of blocks that lies as its codes do.
Result<const SourceTensor*> Source::transposed_scales(const SourceTensor& t, std::string_view name, int64_t experts,
                                                      Matrix& m) {
  const SourceTensor* s = use(fmt::format("{}_scale_inv", name));
  if (s == nullptr) s = use(fmt::format("{}_scale", name));
  if (s == nullptr) return where(t, file_error("has FP8 codes, but no {}_scale_inv and no {}_scale", name, name));
  if (!is_float(s->element)) return where(*s, file_error("scales of type {} cannot be read", element_name(s->element)));
  constexpr int64_t kBlock = 128;
  const int64_t down = ceil_div(m.cols, kBlock), across = ceil_div(m.rows, kBlock);
  m.scale_element = s->element;
  m.block_rows = m.rows;
  m.block_cols = m.cols;
  if (s->elems() == experts) return s;
  if (s->shape != std::vector<int64_t>{experts, down, across})
    return where(*s, file_error("shape {} does not scale {} matrices of [{}, {}] in blocks of {}", shape_text(*s),
                                experts, m.cols, m.rows, kBlock));
  m.block_rows = m.block_cols = kBlock;
  m.scale_cols = across;
  return s;
}

Result<std::vector<Matrix>> Source::transposed_experts(std::string_view name, int64_t experts, int64_t rows,
                                                       int64_t cols) {
  const SourceTensor* t = use(name);
  if (t == nullptr) return file_error("tensor {} is missing; the model needs it", name);
  const bool fp8 = is_fp8(t->element);
  if ((!is_float(t->element) && !fp8) || t->shape != std::vector<int64_t>{experts, cols, rows})
    return where(*t, file_error("{} of type {} is not the [{}, {}, {}] of plain numbers or FP8 that config.json needs",
                                shape_text(*t), element_name(t->element), experts, cols, rows));
  Matrix m;
  m.name = t->name;
  m.rows = rows;
  m.cols = cols;
  m.element = t->element;
  m.column_stride = rows;
  if (!fp8) return each_expert(m, *t, nullptr, experts);
  m.coding = Coding::kFp8;
  QUIRE_TRY(const SourceTensor* scales, transposed_scales(*t, name, experts, m));
  return each_expert(m, *t, scales, experts);
}

Result<Matrix> Source::tensor(std::string_view name, int64_t rows, int64_t cols) {
  const SourceTensor* t = use(name);
  if (t == nullptr) return file_error("tensor {} is missing; the model needs it", name);
  QUIRE_TRY(Matrix m, plain(*t, rows, cols));
  if (m.coding == Coding::kFp8) QUIRE_CHECKED(add_fp8_scales(name, "_", *t, m));
  return m;
}

}  // namespace quire::convert
