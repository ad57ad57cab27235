// Copying a group of rows into the integer core's order: a row's unit is put together field by field, then
// four words of 16 rows at a time are transposed and written past the caches.
#include "core/m256.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/gemm/repack.h"
#include "ops/gemm/rows_avx2.h"

namespace quire::gemm {
namespace {

template <DType kType>
struct Unit {
  static constexpr RepackLayout kLayout = repack_layout(kType);
  static constexpr int kBlockBytes = kLayout.block_bytes(), kWords = (kLayout.words() + 3) / 4 * 4;
  alignas(32) std::byte rows[kGroupRows][kWords * 4] = {};

  // `blocks` exist, perhaps fewer than a unit has.
  void put(int64_t row, const std::byte* from, int64_t blocks) {
    if (blocks >= kLayout.blocks)
      put_fields(rows[row], [&](int b) { return from + b * kBlockBytes; });
    else {
      static constexpr std::byte kZeros[kBlockBytes] = {};
      put_fields(rows[row], [&](int b) { return b < blocks ? from + b * kBlockBytes : kZeros; });
    }
  }
  void store(std::byte* to) const {
    for (int w = 0; w < kWords; w += 4) {
      const Words first = load_words(rows[0] + 4 * w, kWords * 4), second = load_words(rows[8] + 4 * w, kWords * 4);
      for (int i = 0; i < 4 && w + i < kLayout.words(); ++i) {
        auto* const line = reinterpret_cast<__m256i*>(to + (w + i) * kGroupRows * 4);
        _mm256_stream_si256(line, first.of[i]);
        _mm256_stream_si256(line + 1, second.of[i]);
      }
    }
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
    unit.store(to);
  }
  _mm_sfence();
}

using RepackGroup = void (*)(const Weight&, int64_t, int64_t, std::byte*);
constexpr auto kRepack =
    quant::table_by_type<RepackGroup, quant::has_integers>([]<DType kType>() { return repack<kType>; });

}  // namespace

void repack_group(const Weight& w, int64_t expert, int64_t row, std::byte* to) {
  const RepackGroup repack = kRepack[w.dtype];
  if (repack == nullptr) fatal(__FILE__, __LINE__, "no order for the weights of this format");
  repack(w, expert, row, to);
}

}  // namespace quire::gemm
