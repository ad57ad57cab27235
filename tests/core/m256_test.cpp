// The intrinsics that code for vectors of 256 bits is written in (core/m256.h): what an x86 CPU makes of random numbers
// and of numbers at the edges is what NEON's pairs of vectors make of them. The hashes are an x86 CPU's.
#include "core/m256.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

namespace quire {
namespace {

constexpr int kVectors = 64;

struct Random {
  uint64_t state = 0x9e3779b97f4a7c15;
  uint32_t next() {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<uint32_t>(state >> 32);
  }
};

// 256 bits: integers of any size, floats at the edges, small floats, small doubles.
enum class Kind { kInteger, kFloat, kSmallFloat, kDouble };
struct alignas(32) Bytes {
  uint32_t word[8];
};
Bytes bytes_of(Kind kind, Random& random) {
  constexpr uint32_t kEdges[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x00000001, 0x807fffff,
                                 0x7f7fffff, 0x3f800000, 0xbf800000, 0x3f000000, 0x4b000001, 0x00800000, 0x42fe0000};
  Bytes b;
  for (uint32_t& w : b.word) {
    const uint32_t any = random.next();
    const auto small = static_cast<float>(static_cast<int32_t>(any)) * 0x1p-18f;
    w = kind == Kind::kSmallFloat              ? __builtin_bit_cast(uint32_t, small)
        : kind == Kind::kFloat && any % 4 != 0 ? kEdges[any / 4 % std::size(kEdges)]
                                               : any;
  }
  if (kind == Kind::kDouble)
    for (int i = 0; i < 4; ++i) {
      const double d = static_cast<int32_t>(b.word[2 * i]) * 0x1.23456789abcp-3;
      std::memcpy(b.word + 2 * i, &d, 8);
    }
  return b;
}

template <class T>
T as(const Bytes& b) {
  T v;
  std::memcpy(&v, &b, sizeof v);
  return v;
}

bool holds_floats(const __m256&) {
  return true;
}
bool holds_floats(const __m128&) {
  return true;
}
template <class T>
bool holds_floats(const T&) {
  return false;
}

// FNV-1a of what is computed. CPUs differ in which NaN they make of a product without a value: here all are one.
class Hash {
 public:
  template <class T>
  void add(T v) {
    uint32_t words[sizeof(T) < 4 ? 1 : sizeof(T) / 4] = {};
    std::memcpy(words, &v, sizeof v);
    const bool floats = holds_floats(v);
    for (uint32_t w : words) {
      if (floats && std::isnan(__builtin_bit_cast(float, w))) w = 0x7fc00000;
      for (int i = 0; i < 32; i += 8) hash_ = (hash_ ^ (w >> i & 255)) * 1099511628211u;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 14695981039346656037u;
};

// What fn makes of kVectors times as many random vectors as it takes.
template <class Made, class... Taken>
uint64_t hash_of(Kind kind, Made (*fn)(Taken...)) {
  Random random;
  Hash hash;
  for (int i = 0; i < kVectors; ++i) {
    std::tuple<Taken...> taken{as<Taken>(bytes_of(kind, random))...};  // in this order
    hash.add(std::apply(fn, taken));
  }
  return hash.value();
}

struct Case {
  const char* name;
  uint64_t hash;
};

// An intrinsic of one, two or three vectors of floats, doubles or integers; S, H: of 128 bits; BY: and a number.
// clang-format off
#define F1(name) {#name, hash_of(Kind::kFloat, +[](__m256 a) { return name(a); })}
#define F2(name) {#name, hash_of(Kind::kFloat, +[](__m256 a, __m256 b) { return name(a, b); })}
#define F3(name) {#name, hash_of(Kind::kFloat, +[](__m256 a, __m256 b, __m256 c) { return name(a, b, c); })}
#define S2(name) {#name, hash_of(Kind::kFloat, +[](__m128 a, __m128 b) { return name(a, b); })}
#define I2(name) {#name, hash_of(Kind::kInteger, +[](__m256i a, __m256i b) { return name(a, b); })}
#define I3(name) {#name, hash_of(Kind::kInteger, +[](__m256i a, __m256i b, __m256i c) { return name(a, b, c); })}
#define IBY(name, n) {#name " by " #n, hash_of(Kind::kInteger, +[](__m256i a) { return name(a, n); })}
#define SBY(name, n) {#name " by " #n, hash_of(Kind::kInteger, +[](__m128i a) { return name(a, n); })}
#define H1(name) {#name, hash_of(Kind::kInteger, +[](__m128i a) { return name(a); })}
#define H2(name) {#name, hash_of(Kind::kInteger, +[](__m128i a, __m128i b) { return name(a, b); })}
#define D2(name) {#name, hash_of(Kind::kDouble, +[](__m256d a, __m256d b) { return name(a, b); })}
#define D3(name) {#name, hash_of(Kind::kDouble, +[](__m256d a, __m256d b, __m256d c) { return name(a, b, c); })}
#define CMP(how) \
  {#how, hash_of(Kind::kFloat, +[](__m256 a, __m256 b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, how)); })}
// clang-format on

std::vector<Case> computed() {
  return {
      F2(_mm256_add_ps),
      F2(_mm256_sub_ps),
      F2(_mm256_mul_ps),
      F2(_mm256_div_ps),
      F2(_mm256_max_ps),
      F2(_mm256_min_ps),
      F2(_mm256_and_ps),
      F2(_mm256_or_ps),
      F2(_mm256_andnot_ps),
      F2(_mm256_unpacklo_ps),
      F2(_mm256_unpackhi_ps),
      F3(_mm256_fmadd_ps),
      F3(_mm256_fmsub_ps),
      F3(_mm256_fnmadd_ps),
      F3(_mm256_blendv_ps),
      F1(_mm256_movemask_ps),
      S2(_mm_add_ps),
      S2(_mm_mul_ps),
      S2(_mm_max_ps),
      S2(_mm_movehl_ps),
      CMP(_CMP_LT_OQ),
      CMP(_CMP_LE_OQ),
      CMP(_CMP_UNORD_Q),
      CMP(_CMP_NLT_UQ),
      CMP(_CMP_GE_OQ),
      CMP(_CMP_GT_OQ),
      {"round",
       hash_of(
           Kind::kFloat, +[](__m256 a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); })},
      {"movehdup", hash_of(
                       Kind::kFloat, +[](__m128 a) { return _mm_movehdup_ps(a); })},
      {"shuffle_ps", hash_of(
                         Kind::kFloat,
                         +[](__m256 a, __m256 b) {
                           return _mm256_add_ps(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 1, 0)),
                                                _mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 2, 3, 2)));
                         })},
      {"shuffle_ps of one", hash_of(
                                Kind::kFloat, +[](__m128 a, __m128 b) { return _mm_shuffle_ps(a, b, 1); })},
      {"permute2f128 low", hash_of(
                               Kind::kFloat, +[](__m256 a, __m256 b) { return _mm256_permute2f128_ps(a, b, 0x20); })},
      {"permute2f128 high", hash_of(
                                Kind::kFloat, +[](__m256 a, __m256 b) { return _mm256_permute2f128_ps(a, b, 0x31); })},
      {"cvtps_epi32", hash_of(
                          Kind::kSmallFloat, +[](__m256 a) { return _mm256_cvtps_epi32(a); })},
      {"cvttps_epi32", hash_of(
                           Kind::kSmallFloat, +[](__m256 a) { return _mm256_cvttps_epi32(a); })},
      {"cvtepi32_ps", hash_of(
                          Kind::kInteger, +[](__m256i a) { return _mm256_cvtepi32_ps(a); })},
      H1(_mm256_cvtph_ps),
      H1(_mm_cvtph_ps),
      D2(_mm256_mul_pd),
      D2(_mm256_xor_pd),
      D3(_mm256_fmadd_pd),
      D3(_mm256_fnmadd_pd),
      D3(_mm256_blendv_pd),
      {"round_pd", hash_of(
                       Kind::kDouble,
                       +[](__m256d a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); })},
      {"cvtpd_epi32", hash_of(
                          Kind::kDouble, +[](__m256d a) { return _mm256_cvtpd_epi32(a); })},
      {"cvtpd_ps", hash_of(
                       Kind::kDouble, +[](__m256d a) { return _mm256_cvtpd_ps(a); })},
      {"cvtps_pd", hash_of(
                       Kind::kSmallFloat, +[](__m128 a) { return _mm256_cvtps_pd(a); })},
      I2(_mm256_and_si256),
      I2(_mm256_or_si256),
      I2(_mm256_xor_si256),
      I2(_mm256_andnot_si256),
      I2(_mm256_add_epi32),
      I2(_mm256_sub_epi32),
      I2(_mm256_add_epi64),
      I2(_mm256_sub_epi8),
      I2(_mm256_max_epi32),
      I2(_mm256_min_epu32),
      I2(_mm256_cmpeq_epi8),
      I2(_mm256_cmpgt_epi32),
      I2(_mm256_mul_epu32),
      I2(_mm256_unpacklo_epi16),
      I2(_mm256_unpackhi_epi16),
      I2(_mm256_unpacklo_epi32),
      I2(_mm256_unpackhi_epi32),
      I2(_mm256_unpacklo_epi64),
      I2(_mm256_unpackhi_epi64),
      I2(_mm256_packs_epi32),
      I2(_mm256_packs_epi16),
      I2(_mm256_packus_epi32),
      I2(_mm256_madd_epi16),
      I2(_mm256_shuffle_epi8),
      I2(_mm256_permutevar8x32_epi32),
      I3(_mm256_blendv_epi8),
      {"cmpeq_epi32", hash_of(
                          Kind::kInteger,
                          +[](__m256i a, __m256i b) {
                            return _mm256_cmpeq_epi32(_mm256_and_si256(a, _mm256_set1_epi32(3)),
                                                      _mm256_and_si256(b, _mm256_set1_epi32(3)));
                          })},
      {"cmpeq_epi64", hash_of(
                          Kind::kInteger,
                          +[](__m256i a, __m256i b) {
                            const __m256i one = _mm256_set1_epi64x(1);
                            return _mm256_cmpeq_epi64(_mm256_and_si256(a, one), _mm256_and_si256(b, one));
                          })},
      IBY(_mm256_slli_epi32, 7),
      IBY(_mm256_srli_epi32, 9),
      IBY(_mm256_srai_epi32, 5),
      IBY(_mm256_slli_epi16, 3),
      IBY(_mm256_srli_epi16, 11),
      IBY(_mm256_slli_epi64, 33),
      IBY(_mm256_srli_epi64, 35),
      IBY(_mm256_slli_epi32, 0),
      IBY(_mm256_srai_epi32, 0),
      IBY(_mm256_permute4x64_epi64, 0xd8),
      IBY(_mm256_shufflelo_epi16, 0xd8),
      IBY(_mm256_shufflehi_epi16, 0xd8),
      IBY(_mm256_extracti128_si256, 0),
      IBY(_mm256_extracti128_si256, 1),
      {"sll_epi32 by 32", hash_of(
                              Kind::kInteger, +[](__m256i a) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(32)); })},
      {"srl_epi32 by 8", hash_of(
                             Kind::kInteger, +[](__m256i a) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(8)); })},
      {"srl_epi16 by 6", hash_of(
                             Kind::kInteger, +[](__m256i a) { return _mm256_srl_epi16(a, _mm_cvtsi32_si128(6)); })},
      {"blend_epi32", hash_of(
                          Kind::kInteger, +[](__m256i a, __m256i b) { return _mm256_blend_epi32(a, b, 0xaa); })},
      {"permute2x128",
       hash_of(
           Kind::kInteger, +[](__m256i a, __m256i b) { return _mm256_permute2x128_si256(a, b, 0x31); })},
      {"movemask_epi8", hash_of(
                            Kind::kInteger, +[](__m256i a) { return _mm256_movemask_epi8(a); })},
      {"inserti128",
       hash_of(
           Kind::kInteger,
           +[](__m256i a, __m256i b) { return _mm256_inserti128_si256(a, _mm256_castsi256_si128(b), 1); })},
      H1(_mm256_cvtepi8_epi32),
      H1(_mm256_cvtepu8_epi32),
      H1(_mm256_cvtepu16_epi32),
      H1(_mm256_cvtepi8_epi16),
      H1(_mm256_cvtepu8_epi16),
      H1(_mm256_cvtepu32_epi64),
      H1(_mm256_cvtepi32_epi64),
      H1(_mm_cvtepu8_epi32),
      H1(_mm_cvtepu8_epi16),
      H1(_mm_cvtepi8_epi16),
      H1(_mm256_broadcastsi128_si256),
      H2(_mm_and_si128),
      H2(_mm_andnot_si128),
      H2(_mm_add_epi32),
      H2(_mm_max_epi32),
      H2(_mm_mullo_epi32),
      H2(_mm_cmpeq_epi8),
      H2(_mm_shuffle_epi8),
      H2(_mm_unpackhi_epi64),
      H2(_mm_packs_epi32),
      H2(_mm_packus_epi32),
      H2(_mm_packus_epi16),
      SBY(_mm_slli_epi16, 7),
      SBY(_mm_srli_epi16, 4),
      SBY(_mm_srai_epi32, 3),
      SBY(_mm_shuffle_epi32, 0x4e),
      SBY(_mm_shuffle_epi32, 0xb1),
      {"sets of 256", hash_of(
                          Kind::kInteger,
                          +[](__m256i a) {
                            const __m256i ints =
                                _mm256_add_epi32(_mm256_set1_epi8(-3), _mm256_setr_epi64x(-1, 2, -3, int64_t{4} << 33));
                            return _mm256_xor_si256(a, _mm256_add_epi32(ints, _mm256_set1_epi16(-300)));
                          })},
      {"sets of 128", hash_of(
                          Kind::kInteger,
                          +[](__m128i a) {
                            const __m128i bytes =
                                _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
                            const __m128i shorts =
                                _mm_add_epi32(_mm_setr_epi16(1, -2, 3, -4, 5, -6, 7, -8), _mm_set1_epi16(-300));
                            const __m128i words = _mm_add_epi32(_mm_setr_epi32(-1, 2, -3, 4), _mm_set1_epi32(-70000));
                            const __m128i one = _mm_add_epi32(_mm_cvtsi64_si128(int64_t{5} << 33), _mm_set1_epi8(-7));
                            const __m128i all = _mm_add_epi32(_mm_add_epi32(bytes, shorts), _mm_add_epi32(words, one));
                            return _mm_add_epi32(_mm_add_epi32(a, all), _mm_setzero_si128());
                          })},
      {"sets of floats", hash_of(
                             Kind::kFloat,
                             +[](__m256 a) {
                               const __m256 eight = _mm256_setr_ps(1, -2, 3, -4, 5, -6, 7, -8);
                               return _mm256_add_ps(_mm256_add_ps(a, eight),
                                                    _mm256_add_ps(_mm256_set1_ps(0.3f), _mm256_setzero_ps()));
                             })},
      {"sets of doubles",
       hash_of(
           Kind::kDouble, +[](__m256d a) { return _mm256_fmadd_pd(a, _mm256_set1_pd(0.3), _mm256_setzero_pd()); })},
      {"broadcastss", hash_of(
                          Kind::kFloat, +[](__m128 a) { return _mm256_broadcastss_ps(a); })},
      {"halves of floats", hash_of(
                               Kind::kFloat,
                               +[](__m256 a) {
                                 return _mm_mul_ps(_mm256_castps256_ps128(a),
                                                   _mm_add_ps(_mm256_extractf128_ps(a, 1), _mm_set1_ps(0.5f)));
                               })},
      {"set_m128i", hash_of(
                        Kind::kInteger, +[](__m128i a, __m128i b) { return _mm256_set_m128i(a, b); })},
      {"casts", hash_of(
                    Kind::kInteger,
                    +[](__m256i a) {
                      return _mm256_xor_pd(
                          _mm256_castsi256_pd(a),
                          _mm256_castsi256_pd(_mm256_castps_si256(_mm256_castsi256_ps(_mm256_setzero_si256()))));
                    })},
      {"first elements",
       hash_of(
           Kind::kFloat,
           +[](__m128 a, __m128 b) { return _mm_cvtss_f32(_mm_add_ss(a, b)) > _mm_cvtss_f32(_mm_max_ss(a, b)); })},
      {"loadl_epi64", hash_of(
                          Kind::kInteger, +[](__m128i a) { return _mm_loadl_epi64(&a); })},
      {"gather", hash_of(
                     Kind::kFloat, +[](__m256 a) {
                       float from[8];
                       _mm256_storeu_ps(from, a);
                       return _mm256_i32gather_ps(from, _mm256_setr_epi32(7, 0, 3, 3, 6, 1, 5, 2), 4);
                     })}};
}

#undef F1
#undef F2
#undef F3
#undef S2
#undef I2
#undef I3
#undef IBY
#undef SBY
#undef H1
#undef H2
#undef D2
#undef D3
#undef CMP

constexpr uint64_t kOnX86[] = {
#include "m256_hashes.inc"
};

TEST(M256, EveryIntrinsicGivesWhatAnX86CpuGives) {
  const std::vector<Case> cases = computed();
  ASSERT_EQ(cases.size(), std::size(kOnX86));
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(cases[i].hash, kOnX86[i]) << cases[i].name;
}

TEST(M256, LoadsAndStoresMoveWhatTheySay) {
  alignas(32) const float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  alignas(32) float to[3][8] = {};
  _mm256_store_ps(to[0], _mm256_load_ps(from));
  _mm256_store_ps(to[1], _mm256_broadcast_ss(from + 5));
  _mm_store_ps(to[2], _mm_load_ps(from + 4));
  _mm_storeu_ps(to[2] + 4, _mm_load_ps(from));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(to[0][i], from[i]);
    EXPECT_EQ(to[1][i], from[5]);
    EXPECT_EQ(to[2][i], from[(i + 4) % 8]);
  }
  EXPECT_EQ(_mm256_cvtss_f32(_mm256_load_ps(from)), 1.0f);

  alignas(32) int32_t words[8] = {1, -2, 3, -4, 5, -6, 7, -8}, moved[3][8] = {};
  const auto at = [](int32_t* p) { return reinterpret_cast<__m256i*>(p); };
  const auto half = [](int32_t* p) { return reinterpret_cast<__m128i*>(p); };
  _mm256_store_si256(at(moved[0]), _mm256_load_si256(at(words)));
  _mm256_stream_si256(at(moved[1]), _mm256_loadu_si256(at(words)));
  _mm_sfence();
  _mm_store_si128(half(moved[2]), _mm_loadu_si128(half(words + 4)));
  _mm_storeu_si128(half(moved[2] + 4), _mm256_castsi256_si128(_mm256_castsi128_si256(_mm_loadu_si128(half(words)))));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(moved[0][i], words[i]);
    EXPECT_EQ(moved[1][i], words[i]);
    EXPECT_EQ(moved[2][i], words[(i + 4) % 8]);
  }
  EXPECT_EQ(_mm_cvtsi128_si32(_mm_loadu_si128(half(words + 1))), -2);
}

TEST(M256, LoadsAndStoresOfSomeLanesTouchNoOthers) {
  for (int n = 0; n <= 8; ++n) {
    float from[8] = {1, 2, 3, 4, 5, 6, 7, 8}, to[8] = {};
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    _mm256_maskstore_ps(to, mask, _mm256_loadu_ps(from));
    float loaded[8];
    _mm256_storeu_ps(loaded, _mm256_maskload_ps(from, mask));
    int32_t integers[8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(integers),
                        _mm256_maskload_epi32(reinterpret_cast<const int*>(from), mask));
    for (int i = 0; i < 8; ++i) {
      const float expected = i < n ? from[i] : 0.0f;
      EXPECT_EQ(to[i], expected);
      EXPECT_EQ(loaded[i], expected);
      EXPECT_EQ(__builtin_bit_cast(float, integers[i]), expected);
    }
  }
}

}  // namespace
}  // namespace quire
