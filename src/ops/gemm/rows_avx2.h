// What the decoders for 256-bit vectors read: eight weight rows, as the file has them (FileRows) or from a
// repacked copy (CopyRows, repack.h). Both are asked for bytes of a field of a block, and give them with a
// lane for each row. Everything has internal linkage.
#pragma once

#include "core/m256.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/gemm/repack.h"

namespace quire::gemm {
namespace {

constexpr int64_t kStepColumns = 64;
constexpr int kChunkSteps = 4;  // steps that are decoded at a time: the 256 columns of a K-quant's unit
constexpr int64_t kChunkColumns = kChunkSteps * kStepColumns;

template <class T>
T load_as(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The lower 16 bits of every word as a half.
inline __m256 low_halves(__m256i words) {
  const __m256i low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0xd8);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(both));
}
inline __m256 high_halves(__m256i words) {
  return low_halves(_mm256_srli_epi32(words, 16));
}

// 16 bytes of each row: word i of all rows.
struct Words {
  __m256i of[4];
};
// Of eight rows `stride` bytes apart.
[[gnu::always_inline]] inline Words load_words(const std::byte* first, int64_t stride) {
  const auto load16 = [=](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(first + r * stride)); };
  __m256i v[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) v[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(r)), load16(r + 4), 1);
  const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
  const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
  return {{_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
           _mm256_unpackhi_epi64(b, d)}};
}

// Where eight rows begin: rows of the file `stride` bytes apart, or words [][16 rows] of a repacked group, from row 0
// or 8 on.
struct EightRows {
  const std::byte* first;
  int64_t stride;
  EightRows at(int64_t bytes) const { return {first + bytes, stride}; }
};

// Blocks of a step of 64 columns, or of a unit of several steps that is asked for as step 0.
template <DType kType>
struct Blocks {
  static constexpr RepackLayout kLayout = repack_layout(kType);
  static constexpr int kColumns = kLayout.columns / kLayout.blocks;
  static constexpr int kOfStep = kColumns > kStepColumns ? 1 : kStepColumns / kColumns;
};

// Bytes [at, ...) of block i of step s, of each row.
template <DType kType>
class FileRows {
 public:
  static constexpr bool kRepacked = false;
  static constexpr int64_t kChunkBytes = kChunkColumns / Blocks<kType>::kColumns * Blocks<kType>::kLayout.block_bytes();

  explicit FileRows(EightRows rows) : rows_(rows) {}

  [[gnu::always_inline]] Words words(int s, int i, int at) const { return load_words(place(s, i, at), rows_.stride); }
  [[gnu::always_inline]] __m256i word(int s, int i, int at) const {
    const auto row = rows_as<int32_t>(place(s, i, at));
    return _mm256_setr_epi32(row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7));
  }
  // Two bytes as a half.
  [[gnu::always_inline]] __m256 halves(int s, int i, int at) const {
    const auto row = rows_as<int16_t>(place(s, i, at));
    return _mm256_cvtph_ps(_mm_setr_epi16(row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)));
  }
  // A byte as a 32-bit number.
  [[gnu::always_inline]] __m256i bytes(int s, int i, int at) const {
    const auto row = rows_as<uint8_t>(place(s, i, at));
    return _mm256_setr_epi32(row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7));
  }

 private:
  const std::byte* place(int s, int i, int at) const {
    return rows_.first + (s * Blocks<kType>::kOfStep + i) * Blocks<kType>::kLayout.block_bytes() + at;
  }
  template <class T>
  auto rows_as(const std::byte* p) const {
    return [p, stride = rows_.stride](int r) { return load_as<T>(p + r * stride); };
  }

  EightRows rows_;
};

template <DType kType>
class CopyRows {
 public:
  static constexpr bool kRepacked = true;
  static constexpr int64_t kUnitBytes = Blocks<kType>::kLayout.words() * kGroupRows * 4;
  static constexpr int64_t kChunkBytes = kChunkColumns / Blocks<kType>::kLayout.columns * kUnitBytes;

  explicit CopyRows(EightRows rows) : first_(rows.first) {}

  [[gnu::always_inline]] Words words(int s, int i, int at) const {
    return {{word(s, i, at), word(s, i, at + 4), word(s, i, at + 8), word(s, i, at + 12)}};
  }
  [[gnu::always_inline]] __m256i word(int s, int i, int at) const { return word_of(s, position(block(s, i), at)); }
  [[gnu::always_inline]] __m256 halves(int s, int i, int at) const {
    const int b = block(s, i), p = position(b, at);
    return p % 4 == 0 ? low_halves(word_of(s, p)) : high_halves(word_of(s, p));
  }
  [[gnu::always_inline]] __m256i bytes(int s, int i, int at) const {
    const int b = block(s, i), p = position(b, at);
    const __m256i moved = _mm256_srl_epi32(word_of(s, p), _mm_cvtsi32_si128(8 * (p % 4)));
    return _mm256_and_si256(moved, _mm256_set1_epi32(255));
  }

 private:
  static constexpr RepackLayout kLayout = Blocks<kType>::kLayout;
  static constexpr unsigned kStepsOfUnit = kLayout.columns / kStepColumns;

  // Of the unit that step s is in.
  static constexpr int block(int s, int i) {
    return static_cast<int>(static_cast<unsigned>(s) % kStepsOfUnit) * Blocks<kType>::kOfStep + i;
  }
  // Where byte `at` of block b lies in a row's unit: the fields of all blocks follow each other.
  static constexpr int position(int b, int at) {
    int before = 0;
    for (const int bytes : kLayout.fields) {
      if (at < before + bytes) return kLayout.blocks * before + b * bytes + at - before;
      before += bytes;
    }
    return kLayout.blocks * before;  // what fills up the last word
  }
  __m256i word_of(int s, int position) const {
    const int64_t unit = static_cast<unsigned>(s) / kStepsOfUnit;
    return _mm256_load_si256(
        reinterpret_cast<const __m256i*>(first_ + unit * kUnitBytes + position / 4 * (kGroupRows * 4)));
  }

  const std::byte* first_;
};

// Byte i of every word, as a float.
inline __m256 unsigned_byte(__m256i words, int i) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(words, 8 * i), _mm256_set1_epi32(255)));
}
inline __m256 signed_byte(__m256i words, int i) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * i), 24));
}
inline __m256i twice(__m128i table) {
  return _mm256_broadcastsi128_si256(table);
}

}  // namespace
}  // namespace quire::gemm
