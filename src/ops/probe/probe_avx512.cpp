#include <immintrin.h>

#include "ops/probe/kernels.h"

namespace quire::probe {

uint64_t read_streams_avx512(const std::byte* data, int64_t segment, int streams, int64_t ahead) {
  __m512i sum = _mm512_setzero_si512();
  for (int64_t o = 0; o < segment; o += 64)
    for (int s = 0; s < streams; ++s) {
      const std::byte* at = data + s * segment + o;
      if (ahead > 0)  // past the end of a segment lies the next one, which another stream reads: jump over those
        _mm_prefetch(reinterpret_cast<const char*>(at) + ahead + (o + ahead < segment ? 0 : (streams - 1) * segment),
                     _MM_HINT_T0);
      sum = _mm512_add_epi64(sum, _mm512_loadu_si512(at));
    }
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum));
}

double multiply_avx512(int64_t rounds) {
  __m512 sum[12];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  __m512i ones = _mm512_set1_epi16(0x3f80);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(ones));
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, (__m512bh)ones, (__m512bh)ones);
  }
  for (__m512& s : sum) asm volatile("" : : "v"(s));
  return static_cast<double>(rounds) * 12 * 2 * 32;
}

}  // namespace quire::probe
