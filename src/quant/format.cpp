#include "quant/format.h"

#include "gguf/metadata.h"
#include "quant/families.h"

namespace quire::quant {
namespace {

struct Codec {
  DType type;
  Decoder decode;
  Encoder encode;  // null: read only
};

constexpr Codec kCodecs[] = {
    {DType::kF32, decode_f32, encode_f32},       {DType::kF16, decode_f16, encode_f16},
    {DType::kBF16, decode_bf16, encode_bf16},    {DType::kQ8_0, decode_q8_0, encode_q8_0},
    {DType::kQ4_0, decode_q4_0, encode_q4_0},    {DType::kQ4_1, decode_q4_1, encode_q4_1},
    {DType::kQ5_0, decode_q5_0, encode_q5_0},    {DType::kQ5_1, decode_q5_1, encode_q5_1},
    {DType::kQ4_K, decode_q4_k, encode_q4_k},    {DType::kQ5_K, decode_q5_k, encode_q5_k},
    {DType::kQ6_K, decode_q6_k, encode_q6_k},    {DType::kMXFP4, decode_mxfp4, encode_mxfp4},
    {DType::kNVFP4, decode_nvfp4, encode_nvfp4}, {DType::kQ2_K, decode_q2_k, nullptr},
    {DType::kQ3_K, decode_q3_k, encode_q3_k},    {DType::kIQ4_NL, decode_iq4_nl, encode_iq4_nl},
    {DType::kIQ4_XS, decode_iq4_xs, nullptr},    {DType::kFP8, decode_fp8, nullptr},
};

const Codec* find_codec(DType type) {
  for (const Codec& c : kCodecs)
    if (c.type == type) return &c;
  return nullptr;
}

void check_row(DType type, int64_t elems) {
  QUIRE_CHECK(elems >= 0 && elems % dtype_info(type).block_elems == 0, "{} elements of {}", elems, dtype_name(type));
}

}  // namespace

bool can_decode(DType type) {
  return find_codec(type) != nullptr;
}

Status check_decodable(std::string_view tensor, DType type) {
  if (can_decode(type)) return {};
  std::string known;
  for (const Codec& c : kCodecs)
    if (!is_memory_type(c.type)) known += fmt::format("{}{}", known.empty() ? "" : " ", dtype_name(c.type));
  return file_error(
      "tensor {}: type {} cannot be computed with; take the model in one of {}, or make it of the bf16 or f16 file "
      "with `quire quantize`",
      gguf::printable(tensor), dtype_name(type), known);
}

bool can_encode(DType type) {
  const Codec* c = find_codec(type);
  return c != nullptr && c->encode != nullptr;
}

void decode_row(DType type, const std::byte* src, int64_t elems, float* dst) {
  const Codec* c = find_codec(type);
  QUIRE_CHECK(c != nullptr, "cannot decode {}", dtype_name(type));
  check_row(type, elems);
  c->decode(src, elems, dst);
}

void encode_row(DType type, const float* src, int64_t elems, const EncodeOptions& options, std::byte* dst) {
  const Codec* c = find_codec(type);
  QUIRE_CHECK(c != nullptr && c->encode != nullptr, "cannot encode {}", dtype_name(type));
  check_row(type, elems);
  QUIRE_CHECK(options.importance.empty() || std::ssize(options.importance) == elems, "{} importances of {} elements",
              options.importance.size(), elems);
  c->encode(src, elems, options, dst);
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
