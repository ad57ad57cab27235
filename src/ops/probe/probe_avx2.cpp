#include "core/m256.h"

#include "ops/probe/kernels.h"

namespace quire::probe {
namespace {

// A register whose value the compiler does not know.
void hide(__m256& v) {
#ifdef __x86_64__
  asm volatile("" : "+x"(v));
#else
  asm volatile("" : "+w"(v.lo), "+w"(v.hi));
#endif
}

}  // namespace

uint64_t read_streams_avx2(const std::byte* data, int64_t segment, int streams, int64_t ahead) {
  __m256i sum = _mm256_setzero_si256();
  for (int64_t o = 0; o < segment; o += 64)
    for (int s = 0; s < streams; ++s) {
      const std::byte* at = data + s * segment + o;
      if (ahead > 0)
        _mm_prefetch(reinterpret_cast<const char*>(at) + ahead + (o + ahead < segment ? 0 : (streams - 1) * segment),
                     _MM_HINT_T0);
      const __m256i* v = reinterpret_cast<const __m256i*>(at);
      sum = _mm256_add_epi64(sum, _mm256_add_epi64(_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)));
    }
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

double multiply_avx2(int64_t rounds) {
  __m256 sum[12];
  for (__m256& s : sum) s = _mm256_setzero_ps();
  __m256 ones = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < rounds; ++i) {
    hide(ones);
    for (__m256& s : sum) s = _mm256_fmadd_ps(ones, ones, s);
  }
  for (__m256& s : sum) hide(s);
  return static_cast<double>(rounds) * 12 * 2 * 8;
}

}  // namespace quire::probe
