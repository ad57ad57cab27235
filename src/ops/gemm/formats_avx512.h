// Rows of weights to bf16 tiles, by their type. Needs AVX-512 with VBMI and BF16; everything has internal linkage.
#pragma once

#include "ops/gemm/decode_avx512.h"
#include "ops/gemm/formats/all.h"

namespace quire::gemm {
namespace {

// make.template operator()<Rows of the type>() by type; T() for types that bf16 kernels do not take.
template <class T, class Make>
constexpr quant::TableByType<T> table_of_rows(Make make) {
  return quant::table_by_type<T, quant::rounds_to_bf16>([=]<DType kType>() -> T {
    using Format = typename OnAvx512<kType>::Rows;
    static_assert(Format::kColumns == constant_dtype_info(kType).block_elems &&
                  Format::kBytes == constant_dtype_info(kType).block_bytes);
    return make.template operator()<Format>();
  });
}

template <class Format>
void decode_tiles(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count, uint16_t* out,
                  DecodeLayout layout) {
  const Format format;
  first += begin / Format::kColumns * Format::kBytes;
  for (int r = 0; r < rows; ++r) format.row(first + r * row_bytes, count, out + r * layout.row, layout.step);
}

constexpr auto kDecoders = table_of_rows<DecodeTiles>([]<class Format>() { return decode_tiles<Format>; });

inline DecodeTiles decoder_of(DType type) {
  return kDecoders[type];
}

}  // namespace
}  // namespace quire::gemm
