// Finding the parts of 4-bit integer matrices in a model folder.
#include <algorithm>

#include "convert/bytes.h"
#include "convert/matrix.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

// The number of groups that columns make, by the dimension of the scales that counts them; 0: they make none.
int64_t group_size(int64_t cols, int64_t groups) {
  return groups > 0 && cols % groups == 0 ? cols / groups : 0;
}

Matrix matrix_of(const SourceTensor& codes, const Int4& m, int64_t rows, int64_t cols) {
  Matrix out;
  out.name = codes.name;
  out.coding = Coding::kInt4;
  out.element = codes.element;
  out.rows = rows;
  out.cols = cols;
  out.data = codes.data.data();
  out.int4 = m;
  out.int4_fit = find_fit(m, rows, cols);
  return out;
}

}  // namespace

// The tensor, which must exist, of one of these types and of this shape.
Result<const SourceTensor*> Source::table(std::string_view name, std::initializer_list<Element> elements,
                                          std::vector<int64_t> shape) {
  const SourceTensor* t = use(name);
  if (t == nullptr) return file_error("tensor {} is missing; the 4-bit codes beside it need it", name);
  if (std::find(elements.begin(), elements.end(), t->element) == elements.end())
    return where(*t, file_error("type {} cannot be read here", element_name(t->element)));
  if (t->shape != shape) {
    SourceTensor wanted;
    wanted.shape = std::move(shape);
    return where(*t, file_error("shape {} does not fit the codes, which need {}", shape_text(*t), shape_text(wanted)));
  }
  return t;
}

Status Source::add_scales(std::string_view name, std::vector<int64_t> shape, Int4& m) {
  QUIRE_TRY(const SourceTensor* s, table(name, {Element::kF16, Element::kBF16, Element::kF32}, std::move(shape)));
  m.scales = s->data.data();
  m.scale_element = s->element;
  return {};
}

// The group of each column, where columns were put in order of importance; dropped where they were not.
Status Source::add_groups(std::string_view name, int64_t cols, int64_t groups, Int4& m) {
  if (!has(name)) return {};
  QUIRE_TRY(const SourceTensor* t, table(name, {Element::kI32}, {cols}));
  m.group_of = t->data.data();
  bool in_order = true;
  for (int64_t c = 0; c < cols; ++c) {
    const int64_t g = m.group_of_column(c);
    if (g < 0 || g >= groups) return where(*t, file_error("column {} is of group {}, of {}", c, g, groups));
    in_order &= g == c / m.group;
  }
  if (in_order) m.group_of = nullptr;
  return {};
}

// compressed-tensors: weight_packed [N, K / 8], weight_scale [N, groups], weight_zero_point [N / 8, groups].
Result<Matrix> Source::packed_int4(std::string_view stem, const SourceTensor& codes, int64_t rows, int64_t cols) {
  const auto named = [&](std::string_view suffix) { return fmt::format("{}.{}", stem, suffix); };
  if (cols % 8 != 0 || codes.shape != std::vector<int64_t>{rows, cols / 8})
    return where(codes, file_error("{} words do not hold the 4-bit codes of the [{}, {}] that config.json needs",
                                   shape_text(codes), rows, cols));
  const SourceTensor* s = find(named("weight_scale"));
  if (s == nullptr) return where(codes, file_error("has 4-bit codes, but there is no {}", named("weight_scale")));
  const int64_t groups = s->shape.size() == 2 ? s->shape[1] : 0;
  Int4 m;
  m.group = group_size(cols, groups);
  if (m.group == 0) return where(*s, file_error("shape {} does not scale groups of {} columns", shape_text(*s), cols));
  QUIRE_CHECKED(add_scales(named("weight_scale"), {rows, groups}, m));
  m.codes = {.words = codes.data.data(), .row_stride = cols / 8, .col_stride = 1};
  m.scale_row_stride = groups;
  m.scale_col_stride = 1;
  if (const std::string name = named("weight_zero_point"); has(name)) {
    QUIRE_TRY(const SourceTensor* z, table(name, {Element::kI32}, {ceil_div(rows, 8), groups}));
    m.zeros = {.words = z->data.data(), .row_stride = groups, .col_stride = 1, .along_rows = true};
  }
  QUIRE_CHECKED(add_groups(named("weight_g_idx"), cols, groups, m));
  return matrix_of(codes, m, rows, cols);
}

// GPTQ: qweight [K / 8, N]; AWQ: qweight [K, N / 8]. Both: qzeros [groups, N / 8], scales [groups, N].
Result<Matrix> Source::gptq_or_awq(std::string_view stem, const SourceTensor& codes, int64_t rows, int64_t cols) {
  const auto named = [&](std::string_view suffix) { return fmt::format("{}.{}", stem, suffix); };
  const bool whole = cols % 8 == 0 && rows % 8 == 0 && codes.element == Element::kI32;
  const bool awq = codes.shape == std::vector<int64_t>{cols, rows / 8};
  if (!whole || (!awq && codes.shape != std::vector<int64_t>{cols / 8, rows}))
    return where(codes, file_error("{} of type {} are not the 4-bit codes of the [{}, {}] that config.json needs, as "
                                   "neither GPTQ nor AWQ packs them",
                                   shape_text(codes), element_name(codes.element), rows, cols));
  const SourceTensor* s = find(named("scales"));
  if (s == nullptr) return where(codes, file_error("has 4-bit codes, but there is no {}", named("scales")));
  const int64_t groups = s->shape.empty() ? 0 : s->shape[0];
  Int4 m;
  m.group = group_size(cols, groups);
  if (m.group == 0) return where(*s, file_error("shape {} does not scale groups of {} columns", shape_text(*s), cols));
  QUIRE_CHECKED(add_scales(named("scales"), {groups, rows}, m));
  QUIRE_TRY(const SourceTensor* z, table(named("qzeros"), {Element::kI32}, {groups, rows / 8}));
  m.codes = awq ? NibbleTable{codes.data.data(), 1, rows / 8, true, true}
                : NibbleTable{codes.data.data(), 1, rows, false, false};
  m.zeros = {z->data.data(), 1, rows / 8, true, awq};
  m.zero_offset = awq || gptq_v2_ ? 0 : 1;
  m.scale_row_stride = 1;
  m.scale_col_stride = rows;
  QUIRE_CHECKED(add_groups(named("g_idx"), cols, groups, m));
  return matrix_of(codes, m, rows, cols);
}

}  // namespace quire::convert
