#include "quant/format.h"

#include "gguf/metadata.h"
#include "quant/format_table.h"

namespace quire::quant {
namespace {

void check_row(DType type, int64_t elems) {
  QUIRE_CHECK(elems >= 0 && elems % dtype_info(type).block_elems == 0, "{} elements of {}", elems, dtype_name(type));
}

}  // namespace

bool can_decode(DType type) {
  return find_format(type) != nullptr;
}

Status check_decodable(std::string_view tensor, DType type) {
  if (can_decode(type)) return {};
  std::string known;
  for (const FormatRow& f : kFormats)
    if (!is_memory_type(f.type)) known += fmt::format("{}{}", known.empty() ? "" : " ", dtype_name(f.type));
  return file_error(
      "tensor {}: type {} cannot be computed with; take the model in one of {}, or make it of the bf16 or f16 file "
      "with `quire quantize`",
      gguf::printable(tensor), dtype_name(type), known);
}

bool can_encode(DType type) {
  const FormatRow* f = find_format(type);
  return f != nullptr && f->encode != nullptr;
}

void decode_row(DType type, const std::byte* src, int64_t elems, float* dst) {
  const FormatRow* f = find_format(type);
  QUIRE_CHECK(f != nullptr, "cannot decode {}", dtype_name(type));
  check_row(type, elems);
  f->decode(src, elems, dst);
}

void encode_row(DType type, const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst) {
  const FormatRow* f = find_format(type);
  QUIRE_CHECK(f != nullptr && f->encode != nullptr, "cannot encode {}", dtype_name(type));
  check_row(type, elems);
  QUIRE_CHECK(options.importance.empty() || std::ssize(options.importance) == elems, "{} importances of {} elements",
              options.importance.size(), elems);
  f->encode(src, elems, options, dst);
}

double squared_error(const float* x, const float* y, int64_t elems, std::span<const float> importance) {
  QUIRE_CHECK(importance.empty() || std::ssize(importance) == elems, "{} importances of {} elements", importance.size(),
              elems);
  double sum = 0;
  for (int64_t i = 0; i < elems; ++i) {
    const double e = double{x[i]} - y[i];
    sum += (importance.empty() ? 1.0 : importance[static_cast<size_t>(i)]) * e * e;
  }
  return sum;
}

}  // namespace quire::quant
