// Copying a group of rows into the integer core's order: a row's unit is put together field by field, then
// 16 words of 16 rows at a time are transposed and written past the caches.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/gemm/repack.h"
#include "ops/gemm/simd_avx512.h"

namespace quire::gemm {
namespace {

template <DType kType>
struct Unit {
  static constexpr RepackLayout kLayout = repack_layout(kType);
  static constexpr int kBlockBytes = kLayout.block_bytes(), kVectors = (kLayout.words() + 15) / 16;
  alignas(64) std::byte rows[kGroupRows][kVectors * 64] = {};

  // `blocks` exist, perhaps fewer than a unit has.
  void put(int64_t row, const std::byte* from, int64_t blocks) {
    if (blocks >= kLayout.blocks)
      put_fields(rows[row], [&](int b) { return from + b * kBlockBytes; });
    else {
      static constexpr std::byte kZeros[kBlockBytes] = {};
      put_fields(rows[row], [&](int b) { return b < blocks ? from + b * kBlockBytes : kZeros; });
    }
  }
  // Words [16 v, 16 v + 16) of all rows.
  void store(int v, std::byte* to) const {
    __m512i words[kGroupRows];
    for (int64_t r = 0; r < kGroupRows; ++r) words[r] = _mm512_load_si512(rows[r] + v * 64);
    transpose16(words);
    for (int i = 0; i < 16 && 16 * v + i < kLayout.words(); ++i)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to) + 16 * v + i, words[i]);
  }

 private:
  template <class BlockOf>
  static void put_fields(std::byte* to, BlockOf&& block) {
    int offset = 0;
#pragma GCC unroll 4
    for (const int bytes : kLayout.fields)
      for (int b = 0; b < kLayout.blocks; ++b, to += bytes) {
        std::memcpy(to, block(b) + offset, static_cast<size_t>(bytes));
        if (b + 1 == kLayout.blocks) offset += bytes;
      }
    if (!kLayout.flip) return;
    constexpr int kBytes = kLayout.blocks * kLayout.fields[1];
    for (std::byte* p = to - kBytes; p < to; ++p) *p ^= std::byte{0x80};
  }
};

template <DType kType>
void repack(const Weight& w, int64_t expert, int64_t row, std::byte* to) {
  using U = Unit<kType>;
  const int64_t blocks = w.row_bytes() / U::kBlockBytes, rows = std::min(kGroupRows, w.rows - row);
  U unit;
  for (int64_t b = 0; b < blocks; b += U::kLayout.blocks, to += U::kLayout.words() * kGroupRows * 4) {
    for (int64_t r = 0; r < rows; ++r) unit.put(r, w.row(row + r, expert) + b * U::kBlockBytes, blocks - b);
    for (int v = 0; v < U::kVectors; ++v) unit.store(v, to);
  }
  _mm_sfence();
}

}  // namespace

void repack_group(const Weight& w, int64_t expert, int64_t row, std::byte* to) {
  switch (w.dtype) {
    case DType::kNVFP4:
      return repack<DType::kNVFP4>(w, expert, row, to);
    case DType::kMXFP4:
      return repack<DType::kMXFP4>(w, expert, row, to);
    case DType::kQ8_0:
      return repack<DType::kQ8_0>(w, expert, row, to);
    case DType::kQ4_0:
      return repack<DType::kQ4_0>(w, expert, row, to);
    case DType::kQ4_1:
      return repack<DType::kQ4_1>(w, expert, row, to);
    case DType::kQ5_0:
      return repack<DType::kQ5_0>(w, expert, row, to);
    case DType::kQ5_1:
      return repack<DType::kQ5_1>(w, expert, row, to);
    case DType::kQ4_K:
      return repack<DType::kQ4_K>(w, expert, row, to);
    case DType::kQ5_K:
      return repack<DType::kQ5_K>(w, expert, row, to);
    case DType::kQ6_K:
      return repack<DType::kQ6_K>(w, expert, row, to);
    case DType::kQ2_K:
      return repack<DType::kQ2_K>(w, expert, row, to);
    case DType::kQ3_K:
      return repack<DType::kQ3_K>(w, expert, row, to);
    case DType::kIQ4_NL:
      return repack<DType::kIQ4_NL>(w, expert, row, to);
    case DType::kIQ4_XS:
      return repack<DType::kIQ4_XS>(w, expert, row, to);
    default:
      fatal(__FILE__, __LINE__, "no order for the weights of this format");
  }
}

}  // namespace quire::gemm
