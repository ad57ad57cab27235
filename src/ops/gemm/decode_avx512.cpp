// Decoders of block formats to bf16 tiles. Needs AVX-512 with VBMI and BF16. A 4-bit format becomes a table
// of 16 bf16 values per scale and one vpermw per 32 weights; that is exact where the products of code and
// scale have 8 significant bits or fewer (NVFP4, MXFP4), and one rounding otherwise.
#include "ops/gemm/decode_avx512.h"

#include <immintrin.h>

#include <cstring>

#include "quant/format.h"

namespace quire::gemm {
namespace {

constexpr int64_t kTileElems = 16 * 32;

// The upper half of a float's bits: exact for values of at most 8 significant bits.
constexpr uint16_t high_half(float x) {
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, x) >> 16);
}

constexpr float kE2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// One row of 16 products for each value of the scale byte.
struct alignas(64) ProductTable {
  uint16_t of[256][16];
};

constexpr float ue4m3(int byte) {
  const int code = byte & 0x7f, e = code >> 3, m = code & 7;
  if (code == 0x7f) return 0.0f;
  if (e == 0) return static_cast<float>(m) * 0x1p-9f;
  return __builtin_bit_cast(float, static_cast<uint32_t>(e + 120) << 23 | static_cast<uint32_t>(m) << 20);
}
constexpr float e8m0(int byte) {
  if (byte == 0) return 0x1p-127f;
  if (byte == 255) return __builtin_nanf("");
  return __builtin_bit_cast(float, static_cast<uint32_t>(byte) << 23);
}

constexpr ProductTable make_table(float (*scale)(int)) {
  ProductTable t{};
  for (int s = 0; s < 256; ++s)
    for (int c = 0; c < 16; ++c) {
      const double exact = static_cast<double>(scale(s)) * static_cast<double>(kE2m1[c & 7]);
      const bool nan = exact != exact, infinite = exact > 0x1.fep127;
      const uint16_t product = nan ? 0x7fc0 : infinite ? 0x7f80 : high_half(static_cast<float>(exact));
      t.of[s][c] = static_cast<uint16_t>(product | (c & 8) << 12);
    }
  return t;
}
constexpr ProductTable kNvfp4 = make_table(ue4m3);
constexpr ProductTable kMxfp4 = make_table(e8m0);

const uint8_t* bytes(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}
__m256i table_row(const ProductTable& t, uint8_t scale) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(t.of[scale]));
}
__m512i both(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// NVFP4: 64 weights in 36 bytes: 4 scales, then 8 bytes of codes for each 16 weights (low nibbles first).
void decode_nvfp4(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                  uint16_t* tiles) {
  // 16 bytes of codes become 32 words whose low nibble is the code of weight 0..31; bit 4 then chooses
  // between the tables of the two scales.
  const __m512i spread =
      _mm512_set_epi64(0x800f800e800d800c, 0x800b800a80098008, 0x800f800e800d800c, 0x800b800a80098008,
                       0x8007800680058004, 0x8003800280018000, 0x8007800680058004, 0x8003800280018000);
  const __m512i shift = _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                                         0x0004000400040004, 0, 0);
  const __m512i nibble = _mm512_set1_epi16(15);
  const __m512i second = both(_mm256_setzero_si256(), _mm256_set1_epi16(16));
  const auto decode32 = [&](const std::byte* codes, uint8_t s0, uint8_t s1, uint16_t* to) {
    __m512i c = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    c = _mm512_srlv_epi16(_mm512_shuffle_epi8(c, spread), shift);
    c = _mm512_ternarylogic_epi64(c, nibble, second, 0xEA);  // (c & nibble) | second
    const __m512i table = both(table_row(kNvfp4, s0), table_row(kNvfp4, s1));
    _mm512_store_si512(to, _mm512_permutexvar_epi16(c, table));
  };
  for (int r = 0; r < rows; ++r) {
    const std::byte* block = first + r * row_bytes + begin / 64 * 36;
    uint16_t* to = tiles + r * 32;
    for (int64_t k = 0; k < count; k += 64, block += 36, to += 2 * kTileElems) {
      const uint8_t* s = bytes(block);
      decode32(block + 4, s[0], s[1], to);
      decode32(block + 20, s[2], s[3], to + kTileElems);
    }
  }
}

// 16 bytes of codes: weights 0..15 in the low nibbles, 16..31 in the high ones. Bit 4 of an index is left
// over from the other nibble, so the table holds the 16 values twice.
__m512i split_halves(const std::byte* codes, __m256i table) {
  const __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm512_permutexvar_epi16(both(c, _mm256_srli_epi16(c, 4)), _mm512_broadcast_i64x4(table));
}

void decode_mxfp4(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                  uint16_t* tiles) {
  for (int r = 0; r < rows; ++r) {
    const std::byte* block = first + r * row_bytes + begin / 32 * 17;
    uint16_t* to = tiles + r * 32;
    for (int64_t k = 0; k < count; k += 32, block += 17, to += kTileElems)
      _mm512_store_si512(to, split_halves(block + 1, table_row(kMxfp4, *bytes(block))));
  }
}

// The half at `at` in all lanes.
__m512 broadcast_half(const std::byte* at) {
  uint16_t h;
  std::memcpy(&h, at, 2);
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(h)));
}

void decode_q4_0(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                 uint16_t* tiles) {
  const __m512 codes = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
  for (int r = 0; r < rows; ++r) {
    const std::byte* block = first + r * row_bytes + begin / 32 * 18;
    uint16_t* to = tiles + r * 32;
    for (int64_t k = 0; k < count; k += 32, block += 18, to += kTileElems) {
      const __m256bh values = _mm512_cvtneps_pbh(_mm512_mul_ps(codes, broadcast_half(block)));
      _mm512_store_si512(to, split_halves(block + 2, (__m256i)values));
    }
  }
}

// Q8_0: 32 weights in 34 bytes: a half and 32 signed bytes. The scales of a chunk are converted together.
void decode_q8_0(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                 uint16_t* tiles) {
  const auto widen = [](const std::byte* at, __m512 scale) {
    const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
  };
  for (int r = 0; r < rows; ++r) {
    const std::byte* block = first + r * row_bytes + begin / 32 * 34;
    uint16_t* to = tiles + r * 32;
    for (int64_t k = 0; k < count; k += 32, block += 34, to += kTileElems) {
      const __m512 scale = broadcast_half(block);
      const __m512bh values = _mm512_cvtne2ps_pbh(widen(block + 18, scale), widen(block + 2, scale));
      _mm512_store_si512(to, (__m512i)values);
    }
  }
}

void decode_bf16(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                 uint16_t* tiles) {
  const int64_t full = count / 32, rest = count % 32;
  for (int r = 0; r < rows; ++r) {
    const std::byte* from = first + r * row_bytes + begin * 2;
    uint16_t* to = tiles + r * 32;
    for (int64_t s = 0; s < full; ++s, from += 64, to += kTileElems)
      _mm512_store_si512(to, _mm512_loadu_si512(from));
    if (rest > 0) _mm512_store_si512(to, _mm512_maskz_loadu_epi16((1u << rest) - 1u, from));
  }
}

// Any other format: the reference decoder, then one rounding.
template <DType kType>
void decode_any(const std::byte* first, int64_t row_bytes, int rows, int64_t begin, int64_t count,
                uint16_t* tiles) {
  alignas(64) float values[kDecodeChunk];
  for (int r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < count; k += kDecodeChunk) {
      const int64_t n = count - k < kDecodeChunk ? count - k : kDecodeChunk;
      quant::decode_row(kType, first + r * row_bytes + dtype_bytes(kType, begin + k), n, values);
      for (int64_t i = 0; i < n; i += 32) {
        const __m512bh two = _mm512_cvtne2ps_pbh(_mm512_load_ps(values + i + 16), _mm512_load_ps(values + i));
        _mm512_store_si512(tiles + (k + i) / 32 * kTileElems + r * 32, (__m512i)two);
      }
    }
  }
}

}  // namespace

DecodeTiles find_decoder(DType type) {
  switch (type) {
    case DType::kBF16:
      return decode_bf16;
    case DType::kNVFP4:
      return decode_nvfp4;
    case DType::kMXFP4:
      return decode_mxfp4;
    case DType::kQ8_0:
      return decode_q8_0;
    case DType::kQ4_0:
      return decode_q4_0;
    case DType::kQ4_1:
      return decode_any<DType::kQ4_1>;
    case DType::kQ5_0:
      return decode_any<DType::kQ5_0>;
    case DType::kQ5_1:
      return decode_any<DType::kQ5_1>;
    case DType::kQ4_K:
      return decode_any<DType::kQ4_K>;
    case DType::kQ5_K:
      return decode_any<DType::kQ5_K>;
    case DType::kQ6_K:
      return decode_any<DType::kQ6_K>;
    default:
      return nullptr;
  }
}

}  // namespace quire::gemm
